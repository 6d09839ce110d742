"""The right kernel of each op, from which mutants are made. Most call `Steps.attend` on the op's
selection."""

import torch

from nsabench.implementations.baselines import nsa_attention as shipped
from tests.checker.mutants.kernel import RIGHT

KERNELS = {}


def right(*ops):
    """Register the decorated kernel as the right one of these ops."""

    def register(kernel):
        KERNELS.update(dict.fromkeys(ops, kernel))
        return kernel

    return register


def attend(q, k, v, times, scale, steps=RIGHT):
    """Return [B, T, HQ, Dv] of q [B, T, HQ, D], k [B, L, H, D], v [B, L, H, Dv].

    times: how often a query's selection holds each key, broadcast to [B, H, T, L].
    """
    group = q.shape[2] // k.shape[2]
    # Query head i is the (i % group)-th of KV head i // group.
    rows = q.transpose(1, 2).unflatten(1, (-1, group)).flatten(2, 3)
    times = times.expand(-1, -1, q.shape[1], -1).repeat(1, 1, group, 1)
    out = steps.attend(rows, k.transpose(1, 2), v.transpose(1, 2), times, scale)
    return out.unflatten(2, (group, -1)).flatten(1, 2).transpose(1, 2).to(q.dtype).contiguous()


def every(k):
    return torch.ones(1, 1, 1, k.shape[1])


def held(ranges, keys):
    """Return how many spans [..., n, 2] hold each key [..., keys]."""
    position = torch.arange(keys)
    start, end = (ranges[..., i].unsqueeze(-1) for i in (0, 1))
    return ((position >= start) & (position < end)).sum(-2)


def starts(tokens, cu, of=None):
    """Return the first token of each token's sequence, or the entry of `of` for the sequence."""
    if cu is None:
        return torch.zeros(tokens, dtype=torch.int64)
    begins = (cu if of is None else of).long()[:-1]
    return torch.repeat_interleave(begins, cu.diff().long())


def attend_band(q, k, v, lo, hi, scale, steps):
    """Attend from query t to the keys from lo[t] up to hi[t], without hi[t]."""
    lo, hi = steps.edges(lo, hi)
    key = torch.arange(k.shape[1])
    seen = (key >= lo.unsqueeze(1)) & (key < hi.unsqueeze(1))
    return attend(q, k, v, seen[None, None], scale, steps)


@right("selection_rows")
def rows(q, k, v, *, sm_scale, steps=RIGHT):
    keys, values = k.unsqueeze(2), v.unsqueeze(2)
    return attend(q.unsqueeze(1), keys, values, every(k), sm_scale, steps).squeeze(1)


@right("selection_varlen")
def varlen(q, k, v, cu_seqlens, *, sm_scale, max_seqlen, steps=RIGHT, padded=1):
    """padded: rows are read up to the next multiple of it, with zeros for keys after their end."""
    start, end = steps.edges(cu_seqlens[:-1].long(), cu_seqlens[1:].long())
    count = (end.clamp(max=len(k)) - start).unsqueeze(1)
    longest = (count + padded - 1) // padded * padded
    place = torch.arange(max(int(longest.max()), 1))
    index = (start.unsqueeze(1) + place).clamp(0, len(k) - 1)
    keys, values = ((x[index] * (place < count).unsqueeze(2)).unsqueeze(2) for x in (k, v))
    seen = (place < longest)[:, None, None]
    return attend(q.unsqueeze(1), keys, values, seen, sm_scale, steps).squeeze(1)


@right("selection_ranges")
def ranges(q, k, v, ranges, *, sm_scale, selected_len, steps=RIGHT, most=None):
    """most: how many keys of a row are read at most; None: all."""
    times = held(ranges, k.shape[2]).transpose(1, 2)
    if most is not None:
        times = times * ((times > 0).cumsum(-1) <= most)
    keys, values = k.transpose(1, 2), v.transpose(1, 2)
    out = attend(q.flatten(2, 3), keys, values, times, sm_scale, steps)
    return out.unflatten(2, q.shape[2:4])


@right("selection_blocks")
def blocks(
    q, k, v, block_indices, cu_seqlens=None, *, sm_scale, block_size, steps=RIGHT, shift=0, places=0
):
    """shift: of the causal mask, in tokens; None: there is no mask. places: how many keys of a
    block are read; 0: all."""
    position = torch.arange(q.shape[1])
    sequence = starts(q.shape[1], cu_seqlens)
    block = (position - sequence) // block_size
    times = (block_indices.unsqueeze(-1) == block).sum(3).transpose(1, 2)
    times = times * (sequence.unsqueeze(1) == sequence)
    if shift is not None:
        times = times * (position <= position.unsqueeze(1) + shift)
    if places:
        times = times * (position % block_size < places)
    return attend(q, k, v, times, sm_scale, steps)


@right("sliding_window")
def window(q, k, v, cu_seqlens=None, *, window, sm_scale, max_seqlen, steps=RIGHT):
    end = torch.arange(q.shape[1]) + 1
    begin = torch.maximum(starts(q.shape[1], cu_seqlens), end - window)
    return attend_band(q, k, v, begin, end, sm_scale, steps)


@right("compressed")
def compressed(
    q, k, v, cu_seqlens=None, cu_keys=None, *, block, stride, sm_scale, max_seqlen, steps=RIGHT
):
    tokens = torch.arange(q.shape[1]) + 1 - starts(q.shape[1], cu_seqlens)
    first = starts(q.shape[1], cu_seqlens, cu_keys)
    complete = torch.div(tokens - block, stride, rounding_mode="floor") + 1
    return attend_band(q, k, v, first, first + complete.clamp(min=0), sm_scale, steps)


@right("causal_attention")
def causal(q, k, v, cu_seqlens=None, *, sm_scale, max_seqlen, steps=RIGHT):
    first = starts(q.shape[1], cu_seqlens)
    return attend_band(q, k, v, first, torch.arange(q.shape[1]) + 1, sm_scale, steps)


@right("nsa_attention")
def nsa(q, k, v, gates, cu_seqlens=None, **options):
    packed = () if cu_seqlens is None else (cu_seqlens,)
    return shipped.attend(q, k, v, gates, *packed, **options)


@right("decode_dense", "decode_compressed")
def decode(q, k, v, *, sm_scale, times=None, steps=RIGHT):
    """times: [B, H, S], how often the selection holds each key; None: once."""
    k, v = k.transpose(1, 2), v.transpose(1, 2)
    times = every(k) if times is None else times.unsqueeze(2)
    return attend(q.unsqueeze(1), k, v, times, sm_scale, steps).squeeze(1)


@right("decode_window")
def decode_window(q, k, v, *, window, sm_scale):
    return decode(q, k[:, :, -window:], v[:, :, -window:], sm_scale=sm_scale)


@right("decode_selected")
def decode_selected(q, k, v, ranges, *, block_size, sm_scale):
    return decode(q, k, v, sm_scale=sm_scale, times=held(ranges, k.shape[2]))


@right("decode_step")
def step(q, k, v, k_cmp, v_cmp, gates, *, sizes, sm_scale):
    selected = select_tokens(q, k_cmp, k.shape[2], sizes, sm_scale)
    parts = (
        decode(q, k_cmp, v_cmp, sm_scale=sm_scale),
        decode(q, k, v, sm_scale=sm_scale, times=selected),
        decode_window(q, k, v, window=sizes.window, sm_scale=sm_scale),
    )
    return sum(gates[..., i : i + 1] * part for i, part in enumerate(parts))


def select_tokens(q, k_cmp, tokens, sizes, scale):
    """Return bool [B, H, S], the tokens of the blocks that a step selects."""
    grouped = q.float().unflatten(1, (k_cmp.shape[1], -1))
    weights = torch.softmax(grouped @ k_cmp.float().mT * scale, -1).sum(2)
    scores = torch.zeros(*weights.shape[:2], -(-tokens // sizes.block_size))
    for place in range(sizes.block // sizes.stride):
        block = (torch.arange(weights.shape[2]) + place) * sizes.stride // sizes.block_size
        inside = block < scores.shape[2]
        scores.index_add_(2, block[inside], weights[..., inside])
    scores[..., 0] = scores[..., -2:] = torch.inf
    best = scores.sort(dim=-1, descending=True, stable=True).indices[..., : sizes.n_selected]
    keep = torch.zeros_like(scores, dtype=torch.bool).scatter_(2, best, True)
    return keep[..., torch.arange(tokens) // sizes.block_size]
