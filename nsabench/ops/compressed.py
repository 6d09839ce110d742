"""compressed: attention over compressed keys, of which a query sees those that are complete.

q [B,T,HQ,D], k [B,Nc,H,D], v [B,Nc,H,Dv] -> out [B,T,HQ,Dv]. Compressed key i stands for tokens
i * stride up to i * stride + block, and query t sees the first (t + 1 - block) // stride + 1
(arXiv 2502.11089, section 3.3.1); before token block - 1 those are none, and out is 0. `packed`: B
sequences of unequal lengths one after another in q [1,B*T,HQ,D], their keys likewise, with
cu_seqlens and cu_keys int32 [B+1]. max_seqlen: no sequence is longer, as whoever packs them knows
on the host.
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
from nsabench.ops._draws import Ints

if TYPE_CHECKING:
    from torch import Tensor


class CompressedShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean), HQ query heads on H key heads, head dims
    D (q, k) and Dv (v; D unless given), `block` tokens a compressed key, one every `stride`."""

    B: Size
    T: Size
    block: Size
    stride: Size

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _fits(self) -> CompressedShape:
        self.check_heads()
        if self.block > self.T:
            raise ValueError(
                f"T={self.T} tokens are fewer than those of one key, block={self.block}"
            )
        return self


class Compressed(AttentionOp):
    name = "compressed"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,T=64,HQ=2,H=1,D=32,block=16,stride=8",
                "B=2,T=50,HQ=4,H=2,D=32,block=16,stride=8",
            ),
            "cuda": (
                "B=1,T=4096,HQ=64,H=4,D=128,block=32,stride=16",
                "B=2,T=1000,HQ=64,H=4,D=128,block=32,stride=16",
            ),
        }
    )
    arguments = ("q", "k", "v")
    optional = ("cu_seqlens", "cu_keys")
    options = ("block", "stride", "sm_scale", "max_seqlen")
    shape_model = CompressedShape
    directions = (Direction.FORWARD, Direction.BACKWARD)
    length_axis = "T"
    distributions = _banded.DISTRIBUTIONS

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, CompressedShape)
        return shape.T

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, CompressedShape)
        lengths = _lengths(shape, distribution, seed)
        seen = sum(int(_complete(np.arange(n) + 1, shape).sum()) for n in lengths)
        keys = int(_complete(lengths, shape).sum())
        widths = shape.D + shape.Dv
        elements = (shape.B * shape.T * shape.HQ + keys * shape.H) * widths
        cu_bytes = 2 * 4 * (shape.B + 1) if distribution == "packed" else 0
        return Work(elements * dtype.itemsize + cu_bytes, 2 * shape.HQ * seen * widths)

    def differentiable_elements(self, shape: Shape) -> int:
        assert isinstance(shape, CompressedShape)
        keys = shape.B * int(_complete(np.array(shape.T), shape))
        return shape.B * shape.T * shape.HQ * shape.D + keys * shape.H * (shape.D + shape.Dv)

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, CompressedShape)
        normal = _draws.normal(dtype, device, seed)
        packed = distribution == "packed"
        lengths = _lengths(shape, distribution, seed)
        counts = _complete(lengths, shape)
        b, t = (1, shape.B * shape.T) if packed else (shape.B, shape.T)
        n = int(counts.sum()) // b
        q, k = normal(b, t, shape.HQ, shape.D), normal(b, n, shape.H, shape.D)
        _draws.shape_values(distribution, q, k)
        tensors = {"q": q, "k": k, "v": normal(b, n, shape.H, shape.Dv)}
        if packed:
            for name, each in (("cu_seqlens", lengths), ("cu_keys", counts)):
                cu = np.concatenate([[0], np.cumsum(each)]).astype(np.int32)
                tensors[name] = torch.from_numpy(cu).to(device)
        options = {
            "block": shape.block,
            "stride": shape.stride,
            "sm_scale": shape.D**-0.5,
            "max_seqlen": int(lengths.max()),
        }
        return Inputs(tensors, options)

    def oracle(self, inputs: Inputs) -> Tensor:
        return _banded.oracle(inputs, *_bounds(inputs))

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        return _banded.gradients(inputs, grad_out, *_bounds(inputs))


def _lengths(shape: CompressedShape, distribution: str, seed: int) -> Ints:
    if distribution == "packed":
        return _banded.packed_lengths(shape.B, shape.T, seed)
    return np.full(shape.B, shape.T)


def _complete(tokens: Ints, shape: CompressedShape) -> Ints:
    """Compressed keys that are complete after so many tokens."""
    return np.maximum(0, (tokens - shape.block) // shape.stride + 1)


def _bounds(inputs: Inputs) -> tuple[Tensor, Tensor]:
    import torch

    q, cu, cu_keys = (inputs.tensors.get(name) for name in ("q", "cu_seqlens", "cu_keys"))
    assert q is not None
    block, stride = int(inputs.options["block"]), int(inputs.options["stride"])
    t = torch.arange(q.shape[1], device=q.device)
    lo = start = torch.zeros_like(t)
    if cu is not None and cu_keys is not None:
        lengths = cu.diff().long()
        start = torch.repeat_interleave(cu[:-1].long(), lengths)
        lo = torch.repeat_interleave(cu_keys[:-1].long(), lengths)
    tokens = t - start + 1
    complete = torch.div(tokens - block, stride, rounding_mode="floor") + 1
    return lo, lo + complete.clamp(min=0)


OP = Compressed()
