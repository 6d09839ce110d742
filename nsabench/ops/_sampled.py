"""Which queries an oracle looks at, where all of them would take longer than what is measured.

Up to `ALL` tokens every query is looked at. Beyond, `SOME` of them spread over the tokens, another
choice for other inputs, and always the last token, where tails are lost.

In a backward the gradient of the output is of its usual size at the queries that are looked at, and
at all others smaller by so much that dk and dv do not feel them: their bits are as random, so they
cost a device what any others cost, and dk and dv are known for every key.
"""

from __future__ import annotations

import secrets
from typing import TYPE_CHECKING

from nsabench.ops._contract import Inputs

if TYPE_CHECKING:
    from torch import Tensor

ALL = 4096
SOME = 256
# What lies under 2^-14 has fewer bits in float16, of which seven are left here.
QUIET = {"torch.bfloat16": 2.0**-20, "torch.float16": 2.0**-17, "torch.float32": 2.0**-30}
LOUD = {"torch.float16": 2.0**3}
_SECRET = secrets.randbits(62)  # of this process


def tokens(inputs: Inputs) -> Tensor:
    """int64 [n]: the tokens, counted through the batch, whose queries are looked at, rising."""
    import torch

    q = inputs.tensors["q"]
    batches, length = q.shape[:2]
    total = batches * length
    if total <= ALL:
        return torch.arange(total, device=q.device)
    # From the values, which an implementation has no part in, and a number that it is not given:
    # who knew which queries are looked at need compute no others.
    some = q.reshape(total, -1)[:: max(1, total // ALL)].contiguous()
    bits = some.view(torch.int32 if q.element_size() == 4 else torch.int16)
    generator = torch.Generator().manual_seed((int(bits.long().sum()) ^ _SECRET) & (2**62 - 1))
    places = torch.arange(SOME) + torch.rand(SOME, generator=generator)
    chosen = (places * (total / SOME)).long().clamp_(max=total - 1)
    chosen[-1] = total - 1
    return chosen.unique().to(q.device)


def grad_out(inputs: Inputs, normal: Tensor, left_out: Tensor | None = None) -> Tensor:
    """The gradient [B,T,HQ,Dv] of the output: `normal`, quiet where nobody looks.

    left_out: bool [n,HQ], of the tokens that are looked at, rows that are left out.
    """
    import torch

    dtype = str(normal.dtype)
    at = tokens(inputs)
    if at.numel() == normal.shape[0] * normal.shape[1] and left_out is None:
        return normal
    flat = normal.flatten(0, 1)
    loud = torch.zeros(flat.shape[:2], dtype=torch.bool, device=normal.device)
    loud[at] = True if left_out is None else ~left_out
    size = torch.where(loud, LOUD.get(dtype, 1.0), QUIET[dtype]).to(normal.dtype)
    return (flat * size.unsqueeze(-1)).view_as(normal)


def is_loud(gradient: Tensor) -> Tensor:
    """bool [...,HQ]: the rows of a gradient [...,HQ,Dv] that are not quiet."""
    dtype = str(gradient.dtype)
    between = (QUIET[dtype] * LOUD.get(dtype, 1.0)) ** 0.5
    norms: Tensor = gradient.double().square().mean(-1).sqrt()
    return norms > between
