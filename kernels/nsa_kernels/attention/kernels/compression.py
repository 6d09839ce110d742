"""Means of keys and values over overlapping blocks in one launch, their gradients in another.

A program of the forward makes some compressed keys or values of one head. It adds up the tokens of
its blocks step by step. Tokens that overlapping blocks share are read from L1 again. A program of
the backward takes some tokens of one head. For each token, it adds up the gradients of the few
blocks that contain the token. No program needs the results of another.
"""

from __future__ import annotations

from ...jit.compat import narrow, tl, triton
from ...jit.sequences import sequence_of


@triton.jit
def key_offsets_kernel(
    cu_ptr,
    cu_keys_ptr,
    sequences,
    T,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One program: store where the compressed keys of each sequence begin, int32 [sequences + 1].

    The program takes BLOCK sequences at a time. A key has LENGTH >= STRIDE tokens. If cu_seqlens,
    which is clamped to [0, T], never decreases, there are at most T // STRIDE keys.
    """
    total = 0
    tl.store(cu_keys_ptr, 0)
    for first in range(0, sequences, BLOCK):
        i = first + tl.arange(0, BLOCK)
        real = i < sequences
        end = tl.minimum(tl.maximum(tl.load(cu_ptr + i + 1, mask=real, other=0), 0), T)
        begin = tl.minimum(tl.maximum(tl.load(cu_ptr + i, mask=real, other=0), 0), T)
        tokens = tl.where(real, end - begin, 0)
        keys = tl.maximum(tokens - LENGTH + STRIDE, 0) // STRIDE
        tl.store(cu_keys_ptr + 1 + i, total + tl.cumsum(keys, 0), mask=real)
        total += tl.sum(keys, 0)


@triton.jit
def _mean_of_rows(
    x_ptr,
    first,
    real,
    T,
    x_st,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LENGTH: tl.constexpr,
    UNROLL: tl.constexpr,
):
    """Return the mean of the LENGTH rows of x from each ``first``; 0 if not ``real``."""
    d = tl.arange(0, BLOCK_D)
    total = tl.zeros([first.shape[0], BLOCK_D], dtype=tl.float32)
    for begin in range(0, LENGTH, UNROLL):
        for step in tl.static_range(UNROLL):
            token = first + begin + step
            inside = real & (token >= 0) & (token < T)
            if LENGTH % UNROLL != 0:
                inside = inside & (begin + step < LENGTH)
            total += tl.load(
                x_ptr + token.to(tl.int64)[:, None] * x_st + d[None, :],
                mask=inside[:, None] & (d[None, :] < D),
                other=0.0,
            ).to(tl.float32)
    return total / LENGTH


@triton.jit
def compress_kernel(
    k_ptr,
    v_ptr,
    k_cmp_ptr,
    v_cmp_ptr,
    cu_ptr,
    cu_keys_ptr,
    k_sb,
    k_st,
    k_sh,
    v_sb,
    v_st,
    v_sh,
    T,
    N,
    H,
    sequences,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    UNROLL: tl.constexpr,
    KEYS: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Program (KEYS compressed keys, head, batch): write k_cmp [B,N,H,D] and v_cmp.

    Heads 0 to H - 1 belong to k, and H to 2 H - 1 to v.

    If PACKED, key i is key number i - cu_keys[s] of its sequence s. Keys in no sequence get 0.
    """
    batch = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    key = tl.program_id(0) * KEYS + tl.arange(0, KEYS)
    held = key < N
    first = key * STRIDE
    real = held
    if PACKED:
        i = sequence_of(cu_keys_ptr, key, sequences, STEPS)
        real = held & (key < tl.load(cu_keys_ptr + sequences))
        first = tl.load(cu_ptr + i) + (key - tl.load(cu_keys_ptr + i)) * STRIDE
    if head < H:
        d = tl.arange(0, BLOCK_D)
        of_k = k_ptr + batch * k_sb + head.to(tl.int64) * k_sh
        mean_of_k = _mean_of_rows(of_k, first, real, T, k_st, D, BLOCK_D, LENGTH, UNROLL)
        row = (batch * N + key) * H + head
        tl.store(
            k_cmp_ptr + row[:, None] * D + d[None, :],
            narrow(mean_of_k, k_cmp_ptr.dtype.element_ty),
            mask=held[:, None] & (d[None, :] < D),
        )
    else:
        head -= H
        dv = tl.arange(0, BLOCK_DV)
        of_v = v_ptr + batch * v_sb + head.to(tl.int64) * v_sh
        mean_of_v = _mean_of_rows(of_v, first, real, T, v_st, DV, BLOCK_DV, LENGTH, UNROLL)
        row = (batch * N + key) * H + head
        tl.store(
            v_cmp_ptr + row[:, None] * DV + dv[None, :],
            narrow(mean_of_v, v_cmp_ptr.dtype.element_ty),
            mask=held[:, None] & (dv[None, :] < DV),
        )


@triton.jit
def _sum_of_keys(
    grad_ptr,
    place,
    keys,
    first_key,
    g_sn,
    D: tl.constexpr,
    BLOCK_D: tl.constexpr,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
):
    """Return the gradient of the token at each ``place`` of its sequence: the sum of the gradients
    of the compressed keys that cover it, divided by LENGTH. The sequence has ``keys`` compressed
    keys, the first of which is in row ``first_key``."""
    d = tl.arange(0, BLOCK_D)
    total = tl.zeros([place.shape[0], BLOCK_D], dtype=tl.float32)
    for before in range((LENGTH + STRIDE - 1) // STRIDE):
        key = place // STRIDE - ((LENGTH + STRIDE - 1) // STRIDE - 1) + before
        within = (key >= 0) & (key < keys) & (place - key * STRIDE < LENGTH)
        total += tl.load(
            grad_ptr + (first_key + key).to(tl.int64)[:, None] * g_sn + d[None, :],
            mask=within[:, None] & (d[None, :] < D),
            other=0.0,
        ).to(tl.float32)
    return total / LENGTH


@triton.jit
def compress_backward_kernel(
    dk_cmp_ptr,
    dv_cmp_ptr,
    dk_ptr,
    dv_ptr,
    cu_ptr,
    cu_keys_ptr,
    k_sb,
    k_sn,
    k_sh,
    v_sb,
    v_sn,
    v_sh,
    T,
    N,
    H,
    sequences,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    LENGTH: tl.constexpr,
    STRIDE: tl.constexpr,
    TOKENS: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Program (TOKENS tokens, head, batch): write dk [B,T,H,D] and dv.

    Heads 0 to H - 1 belong to dk, and H to 2 H - 1 to dv.

    The inputs are the gradients of k_cmp [B,N,H,D] and v_cmp, with strides k_* and v_*. Tokens in
    no sequence get 0.
    """
    batch = tl.program_id(2).to(tl.int64)
    head = tl.program_id(1)
    t = tl.program_id(0) * TOKENS + tl.arange(0, TOKENS)
    held = t < T
    place = t
    first_key = t * 0
    keys = tl.where(held, N, 0)
    if PACKED:
        i = sequence_of(cu_ptr, t, sequences, STEPS)
        begin = tl.load(cu_ptr + i)
        inside = held & (begin >= 0) & (begin <= t) & (t < tl.load(cu_ptr + i + 1))
        place = t - begin
        first_key = tl.load(cu_keys_ptr + i)
        keys = tl.where(inside, tl.minimum(tl.load(cu_keys_ptr + i + 1), N) - first_key, 0)
    if head < H:
        d = tl.arange(0, BLOCK_D)
        of_k = dk_cmp_ptr + batch * k_sb + head.to(tl.int64) * k_sh
        sum_of_k = _sum_of_keys(of_k, place, keys, first_key, k_sn, D, BLOCK_D, LENGTH, STRIDE)
        row = (batch * T + t) * H + head
        tl.store(
            dk_ptr + row[:, None] * D + d[None, :],
            narrow(sum_of_k, dk_ptr.dtype.element_ty),
            mask=held[:, None] & (d[None, :] < D),
        )
    else:
        head -= H
        dv = tl.arange(0, BLOCK_DV)
        of_v = dv_cmp_ptr + batch * v_sb + head.to(tl.int64) * v_sh
        sum_of_v = _sum_of_keys(of_v, place, keys, first_key, v_sn, DV, BLOCK_DV, LENGTH, STRIDE)
        row = (batch * T + t) * H + head
        tl.store(
            dv_ptr + row[:, None] * DV + dv[None, :],
            narrow(sum_of_v, dv_ptr.dtype.element_ty),
            mask=held[:, None] & (dv[None, :] < DV),
        )
