"""What the attention ops share: their shape, and softmax attention in float64 piece by piece."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from nsabench.model.vocabulary import DType
from nsabench.ops import _draws
from nsabench.ops._contract import Inputs, Op, Shape, Size, Work

if TYPE_CHECKING:
    from torch import Tensor

# The sizes of q before D, then the sizes of k and v before D and Dv.
Axes = tuple[tuple[int, ...], tuple[int, ...]]
Indices = dict[str, NDArray[np.int32]]


class AttentionShape(Shape):
    @model_validator(mode="before")
    @classmethod
    def _dv_is_d(cls, given: object) -> object:
        if isinstance(given, dict) and "Dv" not in given and "D" in given:
            return {**given, "Dv": given["D"]}
        return given


class HeadsShape(AttentionShape):
    """HQ query heads on H key heads. Head dims D (q, k) and Dv (v; D unless given)."""

    HQ: Size
    H: Size
    D: Size
    Dv: Size

    @model_validator(mode="after")
    def _heads_fit(self) -> HeadsShape:
        if self.HQ % self.H:
            raise ValueError(f"HQ={self.HQ} query heads cannot share H={self.H} key heads evenly")
        return self


class AttentionOp(Op):
    """q [..., D], k [..., D], v [..., Dv] and other arguments of the op -> out [..., Dv], shaped as
    q.
    """

    options: ClassVar[tuple[str, ...]] = ("sm_scale",)
    differentiable: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    rows_stand_alone: ClassVar[bool] = True
    # How many gates a query has.
    gates: ClassVar[int] = 0

    @abstractmethod
    def axes(self, shape: Any, distribution: str, seed: int) -> Axes:
        """Return the sizes of q, k and v for inputs of this seed."""

    @abstractmethod
    def count(self, shape: Any, distribution: str, seed: int) -> tuple[int, int, int]:
        """Count the pairs of query and key, the keys to read, and the bytes of `indices`."""

    def indices(self, shape: Any, distribution: str, seed: int) -> Indices:
        """Draw the tensors that say which keys a query attends to, by name."""
        return {}

    def drawn_options(self, shape: Any, distribution: str, seed: int) -> dict[str, Any]:
        """Return the options that are sizes of the shape, and the default scale 1/sqrt(D)."""
        names = (name for name in self.options if name in self.shape_model.model_fields)
        return {**{name: getattr(shape, name) for name in names}, "sm_scale": shape.D**-0.5}

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        normal = _draws.normal(dtype, device, seed)
        axes = self.axes(shape, distribution, seed)
        tensors = _draws.attention(distribution, normal, *axes, shape)
        tensors |= self.draw_indices(shape, distribution, seed, device)
        return Inputs(tensors, self.drawn_options(shape, distribution, seed))

    def draw_indices(
        self, shape: Any, distribution: str, seed: int, device: str
    ) -> dict[str, Tensor]:
        import torch

        drawn = self.indices(shape, distribution, seed).items()
        return {name: torch.tensor(index, device=device) for name, index in drawn}

    def work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Every input that is needed, and the output, move once. Nothing else need move."""
        pairs, keys, index_bytes = self.count(shape, distribution, seed)
        widths = shape.D + shape.Dv
        queries = prod(self.axes(shape, distribution, seed)[0])
        elements = queries * (widths + self.gates) + keys * widths
        return Work(elements * dtype.itemsize + index_bytes, 2 * pairs * widths)

    def differentiable_elements(self, shape: Any) -> int:
        queries, keys = map(prod, self.axes(shape, self.distributions[0], 0))
        return int(queries * (shape.D + self.gates) + keys * (shape.D + shape.Dv))

    def terms(self, shape: Any) -> int:
        """A logit sums D products, the output `length` values."""
        return int(shape.D) + self.length(shape)

    def backward_work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Count four products (dq, dk, dv, the gradient of the weights); a forward has two."""
        backward = super().backward_work(shape, dtype, distribution, seed)
        return Work(backward.bytes_min, backward.flops * 2)

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        return (*inputs.tensors["q"].shape[:-1], inputs.tensors["v"].shape[-1])


class Portion:
    """Some queries of a key head and the keys that they attend to, in float64.

    queries, keys: their places in the inputs' q and k. q: [n,h,D], k: [L,D], v: [L,Dv]. p: weights
    [n,h,L]. heads_first: whether p and q are [h,n,...] instead.
    """

    def __init__(
        self, inputs: Inputs, queries: Any, keys: Any, keep: Tensor, heads_first: bool = True
    ) -> None:
        """keep: bool, which keys a query sees, broadcast to the shape of p."""
        self.queries, self.keys, self.heads_first = queries, keys, heads_first
        q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
        self.q, self.k, self.v = self.turn(q[queries].double()), k[keys].double(), v[keys].double()
        self.p = weights(self.q, self.k, inputs.options["sm_scale"], keep)

    def turn(self, x: Tensor) -> Tensor:
        """Convert between [n,h,...], as the inputs have it, and the layout of p and q."""
        return x.transpose(0, 1) if self.heads_first else x


def attend(inputs: Inputs, portions: Iterable[Portion], elsewhere: float = 0.0) -> Tensor:
    """Compute the output of all portions; rows of no portion hold `elsewhere`."""
    import torch

    q, v = inputs.tensors["q"], inputs.tensors["v"]
    out = q.new_full((*q.shape[:-1], v.shape[-1]), elsewhere, dtype=torch.float64)
    for portion in portions:
        out[portion.queries] = portion.turn(portion.p @ portion.v)
    return out


def differentiate(
    inputs: Inputs, grad_out: Tensor, portions: Iterable[Portion], elsewhere: float = 0.0
) -> dict[str, Tensor]:
    """Compute dq, dk and dv of all portions; other rows of dq hold `elsewhere`."""
    import torch

    grads = {
        name: torch.zeros_like(inputs.tensors[name], dtype=torch.float64)
        for name in AttentionOp.differentiable
    }
    grads["q"].fill_(elsewhere)
    for portion in portions:
        do = portion.turn(grad_out[portion.queries].double())
        # Queries and heads as the rows of one matrix, since they share their keys.
        p, q, g = (x.flatten(0, 1) for x in (portion.p, portion.q, do))
        dq, dk, dv = gradients(p, q, portion.k, portion.v, g, inputs.options["sm_scale"])
        grads["q"][portion.queries] = portion.turn(dq.view_as(portion.q))
        grads["k"][portion.keys] += dk
        grads["v"][portion.keys] += dv
    return grads


def weights(q: Tensor, k: Tensor, scale: float, keep: Tensor) -> Tensor:
    """Compute softmax weights of float64 queries [...,H,D] on keys [...,L,D].

    keep: bool, broadcast to [...,H,L]. A query that keeps no key has all its weights zero.
    """
    import torch

    scores = (q @ k.mT).mul_(scale).masked_fill_(~keep, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num_(0.0)


def gradients(
    p: Tensor, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute dq, dk, dv of `p @ v` in float64 (FlashAttention, arXiv 2205.14135, appendix B.2)."""
    dp = grad_out @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ grad_out
