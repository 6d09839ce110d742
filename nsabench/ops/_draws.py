"""How inputs are drawn: values by torch on the device, index structures by numpy on the host.

Index structures of every seed have the same lengths, so all sets of inputs have the same work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import Tensor

# Values that have broken kernels before; any op may offer them beside its own distributions.
VALUES = ("large_logits", "one_hot", "negative_zero")
LARGE_LOGIT, ONE_HOT = 1e4, 16
LOGITS = {"large_logits": LARGE_LOGIT, "one_hot": float(ONE_HOT)}
BEYOND = 7  # keys that a span out of bounds reaches beyond the first or the last

Ints = NDArray[np.int64]


def normal(dtype: str, device: str, seed: int) -> Callable[..., Tensor]:
    """Return a function from sizes to standard normal tensors, drawn in the case's dtype."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, dtype=getattr(torch, dtype), device=device, generator=generator)

    return draw


def attention(
    distribution: str,
    normal: Callable[..., Tensor],
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    shape: Any,
) -> dict[str, Tensor]:
    """Draw q [*queries, D], k [*keys, D] and v [*keys, Dv]."""
    q, k = normal(*queries, shape.D), normal(*keys, shape.D)
    _shape_values(distribution, q, k)
    return {"q": q, "k": k, "v": normal(*keys, shape.Dv)}


def _shape_values(distribution: str, q: Tensor, k: Tensor) -> None:
    """Change normal queries and keys in place as a distribution of `VALUES` asks.

    large_logits: scaled logits of about +-1e4. one_hot: every element of a query is +-16, so that
    nearly all weight is on few keys. negative_zero: half of all elements are -0.0.
    """
    if distribution == "large_logits":
        # The logit of normal vectors has unit variance under 1/sqrt(D).
        q *= LARGE_LOGIT**0.5
        k *= LARGE_LOGIT**0.5
    elif distribution == "one_hot":
        q.copy_((ONE_HOT * q.sign()).to(q.dtype))
    elif distribution == "negative_zero":
        for tensor in (q, k):
            tensor[..., ::2] = -0.0


def lengths(distribution: str, rows: int, longest: int, seed: int) -> Ints:
    """Draw lengths of packed rows, at most `longest`, in an order of the seed.

    - spread: evenly from 1 to `longest`. A single row has `longest`.
    - equal: all have `longest`. mixed: three quarters are an eighth as long.
    - empty_rows: a quarter has no key. all_empty: no row has a key.
    """
    steps = np.arange(rows)
    if distribution == "all_empty":
        counts = np.zeros(rows, dtype=np.int64)
    elif distribution == "equal" or distribution in VALUES:
        counts = np.full(rows, longest)
    elif distribution == "mixed":
        counts = np.where(steps % 4 == 0, longest, max(1, longest // 8))
    else:
        counts = 1 + steps * (longest - 1) // max(rows - 1, 1)
        if rows == 1:
            counts[:] = longest
        if distribution == "empty_rows":
            counts = np.where(steps % 4 == 0, 0, counts)
    return np.random.default_rng(seed).permutation(counts).astype(np.int64)


def spans(distribution: str, rows: int, count: int, selected: int, keys: int, seed: int) -> Ints:
    """Draw half-open spans [rows, count, 2] over `keys` keys. Their union holds `selected` keys.

    - disjoint: equal spans with gaps, sorted. unsorted: disjoint spans in any order.
    - touching: each begins where the last one ends.
    - overlapping: every other span covers half of the next one.
    - mixed: a row uses some of its spans, of very unequal lengths. The others are empty.
    - out_of_bounds: the first span begins before key 0, and the last ends behind the last key.
    - reversed: every other span has its ends swapped and is empty.
    - empty_rows: a quarter of the rows selects nothing. all_empty: no row selects a key.
    """
    rng = np.random.default_rng(seed)
    if distribution == "mixed":
        used = 1 + rng.permutation(np.arange(rows) % count)
        weights = np.where(np.arange(count) < used[:, None], rng.exponential(1, (rows, count)), 0)
    else:
        weights = np.ones((rows, count))
    widths = _split_total(weights, selected)
    room = rng.exponential(1, (rows, count + 1))  # before, between and behind the spans
    if distribution == "overlapping":
        room[:, 1:count:2] = 0
    elif distribution == "out_of_bounds":
        room[:, 0] = 0
        if count > 1:
            room[:, count] = 0
    gaps = _split_total(room, keys - selected)
    if distribution == "touching":
        gaps[:, 1:count] = 0
    starts = np.cumsum(gaps[:, :count], 1) + np.cumsum(widths, 1) - widths
    bounds = np.stack([starts, starts + widths], -1)
    if distribution == "overlapping":
        bounds[:, : count - 1 : 2, 1] += widths[:, 1::2] // 2
    elif distribution == "unsorted":
        bounds = rng.permuted(bounds.view([("", bounds.dtype)] * 2), axis=1).view(bounds.dtype)
        bounds = bounds.reshape(rows, count, 2)
    elif distribution == "reversed":
        bounds[:, ::2] = bounds[:, ::2, ::-1]
    elif distribution == "out_of_bounds":
        bounds[:, 0, 0] = -BEYOND
        if count > 1:
            bounds[:, -1, 1] = keys + BEYOND
    elif distribution == "empty_rows":
        bounds[rng.permutation(rows)[: max(1, rows // 4)]] = 0
    elif distribution == "all_empty":
        bounds[:] = 0
    return bounds.astype(np.int64)


def _split_total(weights: NDArray[np.float64], total: int) -> Ints:
    ends = np.cumsum(weights, 1)
    ends = np.rint(ends / ends[:, -1:] * total).astype(np.int64)
    return np.diff(ends, axis=1, prepend=0)


def union_sizes(spans: Ints, keys: int) -> Ints:
    """Count the keys that each row of spans [rows, count, 2] selects: [rows]."""
    clamped = np.clip(spans, 0, keys)
    order = np.argsort(clamped[..., 0], axis=1)
    starts, ends = (np.take_along_axis(clamped[..., i], order, 1) for i in (0, 1))
    # Sorted by start, a span adds the keys behind all spans before it.
    before = np.maximum.accumulate(np.pad(ends, ((0, 0), (1, 0)))[:, :-1], axis=1)
    sizes: Ints = np.maximum(ends - np.maximum(starts, before), 0).sum(1)
    return sizes


def touched(spans: Ints, keys: int) -> int:
    """Count the keys that at least one row of spans [rows, count, 2] selects."""
    clamped = np.clip(spans, 0, keys)
    filled = clamped[clamped[..., 1] > clamped[..., 0]]
    begins = np.bincount(filled[:, 0], minlength=keys + 1)
    ends = np.bincount(filled[:, 1], minlength=keys + 1)
    return int((np.cumsum(begins - ends) > 0).sum())
