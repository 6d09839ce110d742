"""Device functions that kernels share: load a tile, update a softmax, store a row.

Logits are in the log2 domain (scaled by ``sm_scale * log2(e)``) so that ``exp2`` can be used; the
LSE that leaves a kernel is the natural logarithm.
"""

from __future__ import annotations

from .compat import dot, narrow, tl, triton


@triton.jit
def load_tile(
    base, index, stride, valid, WIDTH: tl.constexpr, BLOCK: tl.constexpr, MASKED: tl.constexpr
):
    """Load rows ``index`` of a matrix: ``WIDTH`` columns, padded with zeros to ``BLOCK``. If
    MASKED, rows that are not ``valid`` are zeros."""
    cols = tl.arange(0, BLOCK)
    ptrs = base + index[:, None] * stride + cols[None, :]
    if MASKED:
        if WIDTH == BLOCK:
            tile = tl.load(ptrs, mask=valid[:, None], other=0.0)
        else:
            tile = tl.load(ptrs, mask=valid[:, None] & (cols[None, :] < WIDTH), other=0.0)
    else:
        if WIDTH == BLOCK:
            tile = tl.load(ptrs)
        else:
            tile = tl.load(ptrs, mask=cols[None, :] < WIDTH, other=0.0)
    return tile


@triton.jit
def softmax_step(q, k, v, valid, row_max, sums, acc, scale_log2, MASKED: tl.constexpr):
    """Update an online softmax with a tile of keys, of which at least one is valid."""
    s = tl.zeros([q.shape[0], k.shape[0]], dtype=tl.float32)
    s = dot(q, tl.trans(k), s) * scale_log2
    if MASKED:
        s = tl.where(valid[None, :], s, float("-inf"))
    return softmax_update(s, v, row_max, sums, acc)


@triton.jit
def softmax_update(s, v, row_max, sums, acc):
    """Update an online softmax with log2 logits ``s``, -inf for invalid keys, and values ``v``.

    ``sums`` is [heads, keys of a tile]. The caller adds it up over the keys after the last
    tile: a sum in each tile would take a barrier of all warps.
    """
    new_max = tl.maximum(row_max, tl.max(s, 1))
    p = tl.exp2(s - new_max[:, None])
    alpha = tl.exp2(row_max - new_max)
    sums = sums * alpha[:, None] + p
    acc = acc * alpha[:, None]
    acc = dot(narrow(p, v.dtype), v, acc)
    return new_max, sums, acc


@triton.jit
def natural(x):
    return x * 0.6931471805599453


@triton.jit
def base_2(x):
    return x * 1.4426950408889634


@triton.jit
def normalised(acc, row_sum, some):
    """Divide ``acc``, the weighted sums of values, by the sums of weights. Return the quotients and
    the divisors. Rows that see no key (not ``some``) are divided by 1."""
    divisor = tl.where(some, row_sum, 1.0)
    return acc / divisor[:, None], divisor


@triton.jit
def log_sum_exp(row_max, divisor, some):
    """Return the natural LSE of weights that sum to ``divisor`` relative to exp2(``row_max``), or
    -inf for rows that see no key (not ``some``). This is not a part of ``normalised``, so that a
    kernel can store the values before the LSE takes registers."""
    return tl.where(some, natural(row_max + tl.log2(divisor)), float("-inf"))


@triton.jit
def late(q, now, LATE: tl.constexpr):
    """Return ``q``. If LATE, make it depend on ``now``: always true, but unknown to the compiler.

    Without LATE, q is staged in shared memory before the loop, and the first keys are loaded only
    after q has arrived. This wait matters if there are few programs. With LATE, q is staged again
    for every tile. This extra work matters if there are many programs.
    """
    if LATE:
        q = tl.where(now, q, tl.zeros_like(q))
    return q


@triton.jit
def store_row(out_ptr, lse_ptr, acc, row_max, row_sum, first_head, H, DV: tl.constexpr):
    """Store heads of a row that is not split into shares. Without keys, out = 0 and lse = -inf."""
    cols = tl.arange(0, acc.shape[1])
    heads = first_head + tl.arange(0, acc.shape[0])
    heads_ok = heads < H
    some = row_sum > 0
    out, divisor = normalised(acc, row_sum, some)
    lse = log_sum_exp(row_max, divisor, some)
    tl.store(
        out_ptr + heads[:, None] * DV + cols[None, :],
        narrow(out, out_ptr.dtype.element_ty),
        mask=heads_ok[:, None] & (cols[None, :] < DV),
    )
    tl.store(lse_ptr + heads, lse, mask=heads_ok)


@triton.jit
def store_share(part_ptr, plse_ptr, slot, acc, row_max, row_sum, first_head, H, DV: tl.constexpr):
    """Store the result of a share (a part of a row's keys, at least one) in ``slot`` (int64).

    ``part_ptr`` is fp32 [slots, H, DV], normalised; ``plse_ptr`` is fp32 [slots, H], log2.
    """
    cols = tl.arange(0, acc.shape[1])
    heads = first_head + tl.arange(0, acc.shape[0])
    heads_ok = heads < H
    offset = slot * H + heads
    tl.store(
        part_ptr + offset[:, None] * DV + cols[None, :],
        acc / row_sum[:, None],
        mask=heads_ok[:, None] & (cols[None, :] < DV),
    )
    tl.store(plse_ptr + offset, row_max + tl.log2(row_sum), mask=heads_ok)
