"""Define what attention ops share: shapes, and softmax attention in float64, part by part."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import model_validator

from nsabench.model.case import Case
from nsabench.model.vocabulary import DType
from nsabench.ops._op import Inputs, Op, Probe, Shape, Size, Work, draw_normal
from nsabench.ops._probes import make_attention_probes

if TYPE_CHECKING:
    from torch import Tensor

# The sizes of q before D, then the sizes of k and v before D and Dv.
Axes = tuple[tuple[int, ...], tuple[int, ...]]
Indices = dict[str, NDArray[np.int32]]
Ints = NDArray[np.int64]

# Distributions of values that are hard for kernels. Any op may add them to its own distributions.
VALUES = ("large_logits", "one_hot", "negative_zero")
LARGE_LOGIT, ONE_HOT = 1e4, 16
LOGITS = {"large_logits": LARGE_LOGIT, "one_hot": float(ONE_HOT)}


class AttentionShape(Shape):
    @model_validator(mode="before")
    @classmethod
    def _dv_is_d(cls, given: object) -> object:
        if isinstance(given, dict) and "Dv" not in given and "D" in given:
            return {**given, "Dv": given["D"]}
        return given


class HeadsShape(AttentionShape):
    """HQ query heads on H key heads: query head i reads key and value head i // (HQ // H). Head
    dims D (q, k) and Dv (v; D unless given)."""

    HQ: Size
    H: Size
    D: Size
    Dv: Size

    @model_validator(mode="after")
    def _heads_fit(self) -> HeadsShape:
        if self.HQ % self.H:
            raise ValueError(f"HQ={self.HQ} query heads cannot share H={self.H} key heads evenly")
        return self


@dataclass(frozen=True)
class AttentionPart:
    """Some queries of an op, and the keys among which they choose.

    `queries` indexes q, the gates and the output; `keys` indexes k and v. `attend` takes these
    parts of q, k, v and the gates in float64, and returns this part of the output.
    """

    queries: Any
    keys: Any
    attend: Callable[..., Tensor]


class AttentionOp(Op):
    """q [..., D], k [..., D], v [..., Dv], others -> out [..., Dv], with q's sizes before Dv."""

    options: ClassVar[tuple[str, ...]] = ("sm_scale",)
    differentiable: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    gates: ClassVar[int] = 0  # how many gates a query head has
    # Cases with these distributions get the probes of the op's first distribution.
    unprobed: ClassVar[tuple[str, ...]] = (*VALUES, "all_empty")

    def probes(self, case: Case) -> Mapping[str, Probe]:
        odd = case.distribution in self.unprobed
        usual = self.distributions[0] if odd else case.distribution
        return make_attention_probes(self, case, usual)

    @abstractmethod
    def parts(self, inputs: Inputs) -> Iterable[AttentionPart]:
        """Split the op into parts that fit into memory."""

    @abstractmethod
    def axes(self, shape: Any, distribution: str, seed: int) -> Axes:
        """Return the sizes of q, and of k and v, for this seed, without D and Dv."""

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
        normal = draw_normal(dtype, device, seed)
        axes = self.axes(shape, distribution, seed)
        tensors = draw_qkv(distribution, normal, *axes, shape)
        tensors |= self.draw_indices(shape, distribution, seed, device)
        return Inputs(tensors, self.drawn_options(shape, distribution, seed), seed)

    def draw_indices(
        self, shape: Any, distribution: str, seed: int, device: str
    ) -> dict[str, Tensor]:
        import torch

        drawn = self.indices(shape, distribution, seed).items()
        return {name: torch.tensor(index, device=device) for name, index in drawn}

    def work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        pairs, keys, index_bytes = self.count(shape, distribution, seed)
        widths = shape.D + shape.Dv
        queries = prod(self.axes(shape, distribution, seed)[0])
        elements = queries * (widths + self.gates) + keys * widths
        return Work(elements * dtype.itemsize + index_bytes, 2 * pairs * widths)

    def differentiable_elements(self, shape: Any) -> int:
        queries, keys = map(prod, self.axes(shape, self.distributions[0], 0))
        return int(queries * (shape.D + self.gates) + keys * (shape.D + shape.Dv))

    def terms(self, shape: Any) -> int:
        return int(shape.D) + self.length(shape)

    def logit(self, distribution: str) -> float:
        return LOGITS.get(distribution, 1.0)

    def backward_work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Count four products (dq, dk, dv, the gradient of the weights); a forward has two."""
        backward = super().backward_work(shape, dtype, distribution, seed)
        return Work(backward.bytes_min, backward.flops * 2)

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        return (*inputs.tensors["q"].shape[:-1], inputs.tensors["v"].shape[-1])

    def oracle(self, inputs: Inputs) -> Tensor:
        return self.results(inputs)[0]

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        return self.results(inputs, grad_out)[1]

    def results(
        self, inputs: Inputs, grad_out: Tensor | None = None
    ) -> tuple[Tensor, dict[str, Tensor]]:
        import torch

        q, v = inputs.tensors["q"], inputs.tensors["v"]
        of_queries = ("q", "gates") if self.gates else ("q",)
        elsewhere = float("nan") if self.samples_queries else 0.0
        out = q.new_full((*q.shape[:-1], v.shape[-1]), elsewhere, dtype=torch.float64)
        grads = {}
        for name in self.differentiable if grad_out is not None else ():
            empty = elsewhere if name in of_queries else 0.0
            grads[name] = torch.full_like(inputs.tensors[name], empty, dtype=torch.float64)
        for part in self.parts(inputs):
            places = {"q": part.queries, "k": part.keys, "v": part.keys}
            places |= dict.fromkeys(of_queries, part.queries)
            leaves = [inputs.tensors[name][at].detach().double() for name, at in places.items()]
            if grad_out is None:
                out[part.queries] = part.attend(*leaves)
                continue
            with torch.enable_grad():
                result = part.attend(*(leaf.requires_grad_() for leaf in leaves))
            out[part.queries] = result.detach()
            found = torch.autograd.grad(result, leaves, grad_out[part.queries].double())
            for (name, at), gradient in zip(places.items(), found, strict=True):
                if name in of_queries:
                    grads[name][at] = gradient
                else:
                    grads[name][at] += gradient
        return out, grads


def weights(q: Tensor, k: Tensor, scale: float, keep: Tensor | None = None) -> Tensor:
    """Compute softmax weights [...,H,L] of float64 q [...,H,D] and k, all 0 if no key is kept."""
    import torch

    scores = (q @ k.mT).mul_(scale)
    if keep is not None:
        scores.masked_fill_(~keep, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num(0.0)


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float, keep: Tensor | None = None) -> Tensor:
    return weights(q, k, scale, keep) @ v


def attend_to(q: Tensor, k: Tensor, v: Tensor, scale: float, index: Tensor, keep: Tensor) -> Tensor:
    """Attend from each query of q [n,h,D] to those keys `index` [n,L] that `keep` [n,L] marks."""
    index = index.masked_fill(~keep, 0)
    k, v = (x.index_select(0, index.flatten()).unflatten(0, index.shape) for x in (k, v))
    return attend(q, k, v, scale, keep.unsqueeze(1))


def draw_qkv(
    distribution: str,
    normal: Callable[..., Tensor],
    queries: tuple[int, ...],
    keys: tuple[int, ...],
    shape: Any,
) -> dict[str, Tensor]:
    """Draw normal q [*queries, D], k [*keys, D] and v [*keys, Dv]. `VALUES` change q or k:

    large_logits: scaled logits of about +-1e4.
    one_hot: every element of a query is +-16, so that nearly all weight is on few keys.
    negative_zero: half of all elements of q and k are -0.0.
    """
    q, k = normal(*queries, shape.D), normal(*keys, shape.D)
    if distribution == "large_logits":
        # With the scale 1/sqrt(D), the logit of normal vectors has unit variance.
        q *= LARGE_LOGIT**0.5
        k *= LARGE_LOGIT**0.5
    elif distribution == "one_hot":
        q.copy_((ONE_HOT * q.sign()).to(q.dtype))
    elif distribution == "negative_zero":
        for tensor in (q, k):
            tensor[..., ::2] = -0.0
    return {"q": q, "k": k, "v": normal(*keys, shape.Dv)}
