"""Which queries an oracle computes: all up to `ALL` tokens, and a sample of more.

Each set of inputs has its own sample, and the last token is always in it. The gradient of the
output is almost zero at the other queries, so dk and dv are known for every key. The oracle holds
NaN in the rows of the other queries.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from nsabench.ops._contract import Inputs
from nsabench.ops._sequences import spans

if TYPE_CHECKING:
    from torch import Tensor

ALL = 4096
SOME = 256
# Numbers under 2^-14 have fewer bits in float16; seven are left here.
QUIET = {"torch.bfloat16": 2.0**-20, "torch.float16": 2.0**-17, "torch.float32": 2.0**-30}
LOUD = {"torch.float16": 2.0**3}


def tokens(inputs: Inputs) -> Tensor:
    """Return the sampled tokens, counted through the batch: int64 [n], rising."""
    import torch

    k = inputs.tensors["k"]
    total = k.shape[0] * k.shape[1]
    if total <= ALL:
        return torch.arange(total, device=k.device)
    # The draw of the queries and of the gradient depends on the choice, so it is the same in each
    # process. It does not follow from the values: an implementation that knew the sampled queries
    # could leave out the others.
    generator = torch.Generator().manual_seed(inputs.sample_seed)
    places = torch.arange(SOME) + torch.rand(SOME, generator=generator)
    chosen = (places * (total / SOME)).long().clamp_(max=total - 1)
    chosen[-1] = total - 1
    return chosen.unique().to(k.device)


def by_sequence(
    inputs: Inputs, sampled: Tensor | None = None
) -> Iterator[tuple[int, int, int, Tensor]]:
    """Yield the batch, first token and end of each sequence, and its sampled queries in the row.

    sampled: `tokens`, unless given.
    """
    sampled = tokens(inputs) if sampled is None else sampled
    length = inputs.tensors["q"].shape[1]
    for batch, start, end in spans(inputs):
        first = batch * length
        own = sampled[(sampled >= first + start) & (sampled < first + end)] - first
        if own.numel():
            yield batch, start, end, own


def grad_out(inputs: Inputs, normal: Tensor) -> Tensor:
    """Return a gradient of the output [B,T,HQ,Dv] that is quiet where nothing is compared."""
    at = tokens(inputs)
    if at.numel() == normal.shape[0] * normal.shape[1]:
        return normal
    dtype = str(normal.dtype)
    size = normal.new_full((normal.shape[0] * normal.shape[1],), QUIET[dtype])
    size[at] = LOUD.get(dtype, 1.0)
    return normal * size.view(*normal.shape[:2], 1, 1)


def compared(truth: Tensor) -> Tensor:
    """Return which rows (of the last axis) an oracle has computed: bool."""
    return truth[..., 0].isfinite()
