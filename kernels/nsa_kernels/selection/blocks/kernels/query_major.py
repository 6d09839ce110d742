"""The kernel of the query-major forward (``selection/blocks/forward.py``)."""

from __future__ import annotations

from ....jit.compat import dot, narrow, tl, triton
from ....jit.sequences import sequence_of
from ....jit.tiles import load_tile, log_sum_exp, normalised
from .plan import UNROLLED


@triton.jit
def query_major_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    index_ptr,
    cu_ptr,
    out_ptr,
    lse_ptr,
    q_st,
    q_sh,
    k_st,
    k_sh,
    v_st,
    v_sh,
    i_st,
    i_sh,
    H,
    sequences,
    length,
    scale_log2,
    S: tl.constexpr,
    BLOCK_S: tl.constexpr,
    G: tl.constexpr,
    BLOCK_G: tl.constexpr,
    D: tl.constexpr,
    DV: tl.constexpr,
    BLOCK_D: tl.constexpr,
    BLOCK_DV: tl.constexpr,
    BLOCK_SIZE: tl.constexpr,
    PACKED: tl.constexpr,
    STEPS: tl.constexpr,
):
    """Program (token, KV head): attend to each block that the token chose, up to the token."""
    t = tl.program_id(0)
    h = tl.program_id(1).to(tl.int64)
    t64 = t.to(tl.int64)
    if PACKED:
        sequence = sequence_of(cu_ptr, t, sequences, STEPS)
        begin = tl.load(cu_ptr + sequence)
        alive = (begin >= 0) & (t >= begin) & (t < tl.load(cu_ptr + sequence + 1))
    else:
        begin = t // length * length
        alive = t >= 0
    slots = tl.arange(0, BLOCK_S)
    row = tl.load(index_ptr + t64 * i_st + h * i_sh + slots, mask=slots < S, other=-1)
    # Skip a block that is negative, after the token, or the same as an earlier one of the row.
    row = tl.where((row <= (t - begin) // BLOCK_SIZE) & alive, row, -1)
    repeated = tl.zeros([BLOCK_S], dtype=tl.int32)
    for first in range(0, S, UNROLLED):
        earlier = first + tl.arange(0, UNROLLED)
        other = tl.load(index_ptr + t64 * i_st + h * i_sh + earlier, mask=earlier < S, other=-1)
        same = (row[:, None] == other[None, :]) & (earlier[None, :] < slots[:, None])
        repeated = tl.maximum(repeated, tl.max(same.to(tl.int32), 1))
    row = tl.where(repeated > 0, -1, row)
    heads = tl.arange(0, BLOCK_G)
    real = heads < G
    dv = tl.arange(0, BLOCK_DV)
    hq = h * G + heads
    q = load_tile(q_ptr + t64 * q_st, hq, q_sh, real, D, BLOCK_D, True)
    top = tl.full([BLOCK_G], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_G], dtype=tl.float32)
    acc = tl.zeros([BLOCK_G, BLOCK_DV], dtype=tl.float32)
    for slot in range(S):
        block = tl.sum(tl.where(slots == slot, row, 0), 0)
        key = begin + block * BLOCK_SIZE + tl.arange(0, BLOCK_SIZE)
        valid = (block >= 0) & (key <= t)
        offset = key.to(tl.int64)
        k = load_tile(k_ptr + h * k_sh, offset, k_st, valid, D, BLOCK_D, True)
        v = load_tile(v_ptr + h * v_sh, offset, v_st, valid, DV, BLOCK_DV, True)
        s = tl.zeros([BLOCK_G, BLOCK_SIZE], dtype=tl.float32)
        s = dot(q, tl.trans(k), s) * scale_log2
        s = tl.where(valid[None, :], s, float("-inf"))
        new_top = tl.maximum(top, tl.max(s, 1))
        # Without this, a query that has seen no key yet would subtract -inf from -inf.
        base = tl.where(new_top > float("-inf"), new_top, 0.0)
        p = tl.exp2(s - base[:, None])
        alpha = tl.exp2(top - base)
        total = total * alpha + tl.sum(p, 1)
        acc = dot(narrow(p, v.dtype), v, acc * alpha[:, None])
        top = new_top
    some = total > 0
    out, divisor = normalised(acc, total, some)
    offset = t64 * H * G + hq
    out = narrow(out, out_ptr.dtype.element_ty)
    tl.store(
        out_ptr + offset[:, None] * DV + dv[None, :], out, mask=real[:, None] & (dv[None, :] < DV)
    )
    lse = log_sum_exp(top, divisor, some)
    tl.store(lse_ptr + offset, lse, mask=real)
