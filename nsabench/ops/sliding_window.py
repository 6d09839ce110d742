"""sliding_window: causal attention over the last `window` keys.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv]; query t sees the keys
max(0, t - window + 1) .. t (arXiv 2502.11089, section 3.3.3). `packed`: B sequences of unequal
lengths one after another in q [1,B*T,HQ,D], and cu_seqlens int32 [B+1]; each sees itself only.
max_seqlen: no sequence is longer, as whoever packs them knows on the host.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _banded, _draws
from nsabench.ops._attention import AttentionOp
from nsabench.ops._banded import HeadsShape
from nsabench.ops._contract import Inputs, Shape, Size, Work, dv_is_d

if TYPE_CHECKING:
    from torch import Tensor


class SlidingShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean), HQ query heads on H key heads, head dims
    D (q, k) and Dv (v; D unless given), `window` keys a query."""

    B: Size
    T: Size
    window: Size

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _fits(self) -> SlidingShape:
        self.check_heads()
        return self


class SlidingWindow(AttentionOp):
    name = "sliding_window"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,T=64,HQ=2,H=1,D=32,window=16",
                "B=2,T=50,HQ=4,H=2,D=32,window=20",
            ),
            "cuda": (
                "B=1,T=4096,HQ=64,H=4,D=128,window=512",
                "B=2,T=1000,HQ=64,H=4,D=128,window=300",
            ),
        }
    )
    arguments = ("q", "k", "v")
    optional = ("cu_seqlens",)
    options = ("window", "sm_scale", "max_seqlen")
    shape_model = SlidingShape
    directions = (Direction.FORWARD, Direction.BACKWARD)
    length_axis = "T"
    distributions = _banded.DISTRIBUTIONS

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, SlidingShape)
        return shape.T

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, SlidingShape)
        lengths = _lengths(shape, distribution, seed)
        seen = sum(_seen(int(n), shape.window) for n in lengths)
        widths = shape.D + shape.Dv
        elements = shape.B * shape.T * (shape.HQ + shape.H) * widths
        cu_bytes = 4 * (shape.B + 1) if distribution == "packed" else 0
        return Work(elements * dtype.itemsize + cu_bytes, 2 * shape.HQ * seen * widths)

    def differentiable_elements(self, shape: Shape) -> int:
        assert isinstance(shape, SlidingShape)
        return shape.B * shape.T * (shape.HQ * shape.D + shape.H * (shape.D + shape.Dv))

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, SlidingShape)
        normal = _draws.normal(dtype, device, seed)
        packed = distribution == "packed"
        b, t = (1, shape.B * shape.T) if packed else (shape.B, shape.T)
        q, k = normal(b, t, shape.HQ, shape.D), normal(b, t, shape.H, shape.D)
        _draws.shape_values(distribution, q, k)
        tensors = {"q": q, "k": k, "v": normal(b, t, shape.H, shape.Dv)}
        lengths = _lengths(shape, distribution, seed)
        if packed:
            cu = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
            tensors["cu_seqlens"] = torch.from_numpy(cu).to(device)
        longest = int(lengths.max())
        options = {"window": shape.window, "sm_scale": shape.D**-0.5, "max_seqlen": longest}
        return Inputs(tensors, options)

    def oracle(self, inputs: Inputs) -> Tensor:
        return _banded.oracle(inputs, *_bounds(inputs))

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        return _banded.gradients(inputs, grad_out, *_bounds(inputs))


def _lengths(shape: SlidingShape, distribution: str, seed: int) -> _draws.Ints:
    if distribution == "packed":
        return _banded.packed_lengths(shape.B, shape.T, seed)
    return np.full(shape.B, shape.T)


def _seen(length: int, window: int) -> int:
    """Keys that the queries of a sequence see, together."""
    rising = min(length, window)
    return rising * (rising + 1) // 2 + (length - rising) * window


def _bounds(inputs: Inputs) -> tuple[Tensor, Tensor]:
    import torch

    q, cu = inputs.tensors["q"], inputs.tensors.get("cu_seqlens")
    t = torch.arange(q.shape[1], device=q.device)
    start = torch.zeros_like(t)
    if cu is not None:
        start = torch.repeat_interleave(cu[:-1].long(), cu.diff().long())
    return torch.maximum(start, t + 1 - int(inputs.options["window"])), t + 1


OP = SlidingWindow()
