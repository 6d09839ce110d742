"""What all attention is: queries, keys and values; in float64, forward and backward, for oracles
that work in pieces."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from nsabench.model.vocabulary import DType
from nsabench.ops._contract import Inputs, Op, Shape, Work

if TYPE_CHECKING:
    from torch import Tensor


class AttentionOp(Op):
    """q [..., D], k [..., D], v [..., Dv] and what else an op has -> out [..., Dv], as many as q.

    Its shape has the head dim as D.
    """

    options: ClassVar[tuple[str, ...]] = ("sm_scale",)
    differentiable: ClassVar[tuple[str, ...]] = ("q", "k", "v")
    rows_stand_alone: ClassVar[bool] = True

    def terms(self, shape: Shape) -> int:
        """A logit sums D products, the output `length` values."""
        return int(getattr(shape, "D", 0)) + self.length(shape)

    def backward_work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """dq, dk, dv and the gradient of the weights are four products where the forward has two of
        the same sizes. Who does not keep the weights computes them again, a fifth product, but
        nobody must."""
        backward = super().backward_work(shape, dtype, distribution, seed)
        return Work(backward.bytes_min, backward.flops * 2)

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        return (*inputs.tensors["q"].shape[:-1], inputs.tensors["v"].shape[-1])


def weights(q: Tensor, k: Tensor, scale: float, keep: Tensor) -> Tensor:
    """Softmax weights of float64 queries [..., H, D] on keys [..., L, D].

    keep: bool, broadcast to [..., H, L]; a query that keeps no key has all its weights zero.
    """
    import torch

    scores = (q @ k.mT).mul_(scale).masked_fill_(~keep, float("-inf"))
    return torch.softmax(scores, -1).nan_to_num_(0.0)


def gradients(
    p: Tensor, q: Tensor, k: Tensor, v: Tensor, grad_out: Tensor, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dq, dk, dv of `p @ v` with p = weights(q, k, scale, ...), everything float64.

    dv = p^T do; ds = p (do v^T - rowsum(p (do v^T))); dq = scale ds k; dk = scale ds^T q
    (FlashAttention, arXiv 2205.14135, appendix B.2).
    """
    dp = grad_out @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ grad_out
