"""causal_attention: dense attention over everything up to the query itself.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv]. `packed`: B sequences of unequal lengths
one after another in q [1,B*T,HQ,D], and cu_seqlens int32 [B+1]; each sees itself only. max_seqlen:
no sequence is longer, as whoever packs them knows on the host. It is what a model runs instead of
`nsa_attention`.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from pydantic import model_validator

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _attention, _draws, _sampled
from nsabench.ops._attention import AttentionOp
from nsabench.ops._banded import HeadsShape
from nsabench.ops._contract import Inputs, Shape, Size, Work, dv_is_d
from nsabench.ops._left_out import NOT_LOOKED_AT
from nsabench.ops._sequences import Sequences, draw_lengths

if TYPE_CHECKING:
    from torch import Tensor

# Weights in float64 at a time: half a GiB.
CHUNK_ELEMENTS = 1 << 26


class CausalShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean), HQ query heads on H key heads, head dims
    D (q, k) and Dv (v; D unless given)."""

    B: Size
    T: Size

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _heads_fit(self) -> CausalShape:
        self.check_heads()
        return self


class CausalAttention(AttentionOp):
    name = "causal_attention"
    check_shapes = MappingProxyType(
        {
            "cpu": ("B=1,T=64,HQ=2,H=1,D=32", "B=2,T=50,HQ=4,H=2,D=32"),
            "cuda": ("B=1,T=4096,HQ=64,H=4,D=128", "B=2,T=1000,HQ=64,H=4,D=128"),
        }
    )
    arguments = ("q", "k", "v")
    optional = ("cu_seqlens",)
    options = ("sm_scale", "max_seqlen")
    shape_model = CausalShape
    directions = (Direction.FORWARD, Direction.BACKWARD, Direction.STEP)
    length_axis = "T"
    distributions = ("dense", "packed")
    leaves_rows_out = True

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, CausalShape)
        return shape.T

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        assert isinstance(shape, CausalShape)
        lengths = draw_lengths(shape.B, shape.T, distribution, seed)
        seen = sum(int(n) * (int(n) + 1) // 2 for n in lengths)
        widths = shape.D + shape.Dv
        elements = shape.B * shape.T * (shape.HQ + shape.H) * widths
        cu_bytes = 4 * (shape.B + 1) if distribution == "packed" else 0
        return Work(elements * dtype.itemsize + cu_bytes, 2 * shape.HQ * seen * widths)

    def differentiable_elements(self, shape: Shape) -> int:
        assert isinstance(shape, CausalShape)
        return shape.B * shape.T * (shape.HQ * shape.D + shape.H * (shape.D + shape.Dv))

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        assert isinstance(shape, CausalShape)
        normal = _draws.normal(dtype, device, seed)
        sequences = Sequences.drawn(shape.B, shape.T, distribution, seed)
        b, t = sequences.axes
        tensors = {
            "q": normal(b, t, shape.HQ, shape.D),
            "k": normal(b, t, shape.H, shape.D),
            "v": normal(b, t, shape.H, shape.Dv),
            **sequences.tensors(device),
        }
        return Inputs(tensors, {"sm_scale": shape.D**-0.5, "max_seqlen": sequences.longest})

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        return _sampled.grad_out(inputs, super().draw_grad(inputs, seed))

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        q, v = inputs.tensors["q"], inputs.tensors["v"]
        out = torch.full(
            (*q.shape[:3], v.shape[3]), NOT_LOOKED_AT, dtype=torch.float64, device=q.device
        )
        for rows, _, p, _, _, vd in _pieces(inputs):
            out[rows] = (p @ vd).transpose(0, 1)
        return out

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        import torch

        grads = {
            name: torch.zeros_like(inputs.tensors[name], dtype=torch.float64)
            for name in self.differentiable
        }
        grads["q"].fill_(NOT_LOOKED_AT)
        scale = inputs.options["sm_scale"]
        for rows, keys, p, qd, kd, vd in _pieces(inputs):
            do = grad_out[rows].double().transpose(0, 1)
            flat_p, flat_q, flat_do = (x.flatten(0, 1) for x in (p, qd, do))
            dq, dk, dv = _attention.gradients(flat_p, flat_q, kd, vd, flat_do, scale)
            grads["q"][rows] = dq.view_as(qd).transpose(0, 1)
            grads["k"][keys] += dk
            grads["v"][keys] += dv
        return grads


def _pieces(inputs: Inputs) -> Iterator[tuple[Any, ...]]:
    """Where some of the queries that are looked at lie in q and their keys in k; their weights
    [h,n,L]; float64 q [h,n,D], k [L,D], v [L,Dv]."""
    import torch

    q, k, v = (inputs.tensors[name] for name in ("q", "k", "v"))
    group = q.shape[2] // k.shape[2]
    looked_at = _sampled.tokens(inputs)
    for batch, start, end in Sequences.spans(inputs):
        first = batch * q.shape[1]
        own = looked_at[(looked_at >= first + start) & (looked_at < first + end)] - first
        if not len(own):  # of a short sequence, perhaps, none is looked at
            continue
        step = max(1, CHUNK_ELEMENTS // (group * max(end - start, 1)))
        for some in own.split(step):
            last = int(some.max()) + 1
            keep = torch.arange(start, last, device=q.device) <= some.unsqueeze(1)
            for h in range(k.shape[2]):
                rows = (batch, some, slice(h * group, (h + 1) * group))
                keys = (batch, slice(start, last), h)
                qd = q[rows].double().transpose(0, 1)
                kd, vd = k[keys].double(), v[keys].double()
                p = _attention.weights(qd, kd, inputs.options["sm_scale"], keep)
                yield rows, keys, p, qd, kd, vd


OP = CausalAttention()
