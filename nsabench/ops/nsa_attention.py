"""nsa_attention: Native Sparse Attention as a whole, prefill and training.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], gates [B,T,HQ,3] -> out [B,T,HQ,Dv] = gates[0] compressed +
gates[1] selected + gates[2] window (arXiv 2502.11089, section 3.3). Compressed keys and values are
means of `block` tokens, one every `stride`; of blocks of `block_size` tokens the first, the two up
to the query's own and those of the highest scores are selected, `n_selected` in all, the lowest
index where scores are equal; the last `window` keys are the window. `packed`: B sequences one after
another in q [1,B*T,HQ,D], and cu_seqlens int32 [B+1]. max_seqlen: no sequence is longer.

Where the n-th and the next score are closer than the format resolves, which block is right hangs on
rounding. Such queries are left out of parity and counted; they are held to bounds that any choice
between these blocks keeps (`_legal`), and in a backward the gradient of their
output is next to nothing, so that dk and dv do not hang on it.
"""

from __future__ import annotations

from types import MappingProxyType
from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _draws, _legal, _nsa, _sampled
from nsabench.ops._attention import AttentionOp
from nsabench.ops._banded import HeadsShape
from nsabench.ops._contract import Inputs, Shape, Size, Work, dv_is_d
from nsabench.ops._decode import LOCAL
from nsabench.ops._left_out import HANGS_ON_ROUNDING, NOT_LOOKED_AT
from nsabench.ops._legal import Legal
from nsabench.ops._sequences import Sequences, draw_lengths

if TYPE_CHECKING:
    from torch import Tensor

TRIES = 64  # at a last query whose selection does not hang on rounding
# Of the keys of a stride, and of the queries of a group, what they have in common: neighbours are
# alike, as those of a model are, so that their mean says something of them.
KEYS_ALIKE, QUERIES_ALIKE = 1.0, 0.7


class NsaShape(HeadsShape):
    """B sequences of T tokens (packed: of T in the mean), HQ query heads on H key heads, head dims
    D (q, k) and Dv (v; D unless given); compressed keys of `block` tokens, one every `stride`;
    `n_selected` blocks of `block_size` tokens; `window` keys."""

    B: Size
    T: Size
    block: Size = 32
    stride: Size = 16
    block_size: Size = 64
    n_selected: Size = 16
    window: Size = 512

    _dv = model_validator(mode="before")(dv_is_d)

    @model_validator(mode="after")
    def _fits(self) -> NsaShape:
        self.check_heads()
        if self.block % self.stride or self.block_size % self.stride:
            raise ValueError(f"{self.stride=} does not divide {self.block=} and {self.block_size=}")
        if self.n_selected <= LOCAL:
            raise ValueError(f"{self.n_selected=} does not hold the first and {LOCAL} local blocks")
        return self


class NsaAttention(AttentionOp):
    name = "nsa_attention"
    check_shapes = MappingProxyType(
        {
            "cpu": (
                "B=1,T=120,HQ=4,H=2,D=32,block=8,stride=4,block_size=16,n_selected=4,window=12",
                "B=2,T=77,HQ=4,H=2,D=32,block=8,stride=4,block_size=16,n_selected=3,window=30",
            ),
            "cuda": ("B=1,T=4096,HQ=64,H=4,D=128", "B=2,T=1000,HQ=64,H=4,D=128"),
        }
    )
    arguments = ("q", "k", "v", "gates")
    optional = ("cu_seqlens",)
    options = (
        "block",
        "stride",
        "block_size",
        "n_selected",
        "window",
        "sm_scale",
        "max_seqlen",
    )
    differentiable = ("q", "k", "v", "gates")
    shape_model = NsaShape
    directions = (Direction.FORWARD, Direction.BACKWARD, Direction.STEP)
    length_axis = "T"
    distributions = ("dense", "packed")
    leaves_rows_out = True
    rows_stand_alone = False  # which queries are looked at hangs on all of them

    def length(self, shape: Shape) -> int:
        assert isinstance(shape, NsaShape)
        return shape.T

    def terms(self, shape: Shape) -> int:
        """A logit sums D products, the output the values of its branches."""
        assert isinstance(shape, NsaShape)
        selected = min(shape.n_selected * shape.block_size, shape.T)
        return shape.D + shape.T // shape.stride + selected + min(shape.window, shape.T)

    def parts(self, shape: NsaShape, dtype: DType, distribution: str, seed: int) -> dict[str, Work]:
        """Compulsory work of each part alone, by name."""
        lengths = draw_lengths(shape.B, shape.T, distribution, seed)
        widths, tokens = shape.D + shape.Dv, shape.B * shape.T
        queries, keys = tokens * shape.HQ * widths, tokens * shape.H * widths
        complete = sum(int(_complete(np.array([n]), shape)[0]) for n in lengths) * shape.H * widths
        seen = {"compressed": 0, "selected": 0, "window": 0}
        for length in lengths:
            position = np.arange(int(length))
            seen["compressed"] += int(_complete(position + 1, shape).sum())
            seen["selected"] += int(_selected(position, shape).sum())
            seen["window"] += int(np.minimum(position + 1, shape.window).sum())
        size = dtype.itemsize
        parts = {
            "compression": Work((keys + complete) * size, keys * (shape.block // shape.stride))
        }
        for name, read in (("compressed", complete), ("selected", keys), ("window", keys)):
            parts[name] = Work((queries + read) * size, 2 * shape.HQ * seen[name] * widths)
        gated = tokens * shape.HQ * (4 * shape.Dv + 3)
        parts["gated_sum"] = Work(gated * size, 2 * 3 * tokens * shape.HQ * shape.Dv)
        return parts

    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """q, k, v, the gates and the output move once; what lies between need not be moved. What
        selection and window have in common need be computed once, so the larger of them counts."""
        assert isinstance(shape, NsaShape)
        parts = self.parts(shape, dtype, distribution, seed)
        widths = shape.D + shape.Dv
        elements = shape.B * shape.T * ((shape.HQ + shape.H) * widths + 3 * shape.HQ)
        cu_bytes = 4 * (shape.B + 1) if distribution == "packed" else 0
        least = parts["compressed"].flops + max(parts["selected"].flops, parts["window"].flops)
        return Work(elements * dtype.itemsize + cu_bytes, least)

    def differentiable_elements(self, shape: Shape) -> int:
        assert isinstance(shape, NsaShape)
        heads = shape.HQ * (shape.D + 3) + shape.H * (shape.D + shape.Dv)
        return shape.B * shape.T * heads

    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        assert isinstance(shape, NsaShape)
        normal = _draws.normal(dtype, device, seed)
        sequences = Sequences.drawn(shape.B, shape.T, distribution, seed)
        b, t = sequences.axes
        q, k = normal(b, t, shape.HQ, shape.D), normal(b, t, shape.H, shape.D)
        _alike(q.unflatten(2, (shape.H, -1)), normal(b, t, shape.H, 1, shape.D), QUERIES_ALIKE)
        strides = -(-t // shape.stride)
        common = normal(b, strides, shape.H, shape.D).repeat_interleave(shape.stride, 1)[:, :t]
        _alike(k, common, KEYS_ALIKE)
        tensors = {
            "q": q,
            "k": k,
            "v": normal(b, t, shape.H, shape.Dv),
            "gates": torch.sigmoid(normal(b, t, shape.HQ, 3)),
            **sequences.tensors(device),
        }
        sizes = {name: getattr(shape, name) for name in self.options if hasattr(shape, name)}
        options = {**sizes, "sm_scale": shape.D**-0.5, "max_seqlen": sequences.longest}
        inputs = Inputs(tensors, options)
        last = torch.tensor([b * t - 1], device=device)
        # Where a kernel is compiled without a GPU, tensors have no values.
        for _ in range(TRIES if type(q) is torch.Tensor else 0):
            if not any(bool(piece.hangs.any()) for piece in _nsa.pieces(inputs, last)):
                break
            # The last row is where tails are lost, so that one is compared.
            q[-1, -1] = normal(shape.HQ, shape.D)
            _alike(q[-1, -1].unflatten(0, (shape.H, -1)), normal(shape.H, 1, shape.D), 1.0)
        return inputs

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        import torch

        at = _sampled.tokens(inputs)
        tokens = inputs.tensors["q"].shape[1]
        left_out = torch.zeros(at.numel(), inputs.tensors["q"].shape[2], dtype=torch.bool)
        left_out = left_out.to(at.device)
        for piece in _nsa.pieces(inputs):
            batch, some, heads = piece.rows
            left_out[torch.searchsorted(at, some + batch * tokens), heads] = piece.hangs[:, None]
        return _sampled.grad_out(inputs, super().draw_grad(inputs, seed), left_out)

    def oracle(self, inputs: Inputs) -> Tensor:
        import torch

        q, v = inputs.tensors["q"], inputs.tensors["v"]
        shape = (*q.shape[:3], v.shape[3])
        out = torch.full(shape, NOT_LOOKED_AT, dtype=torch.float64, device=q.device)
        for piece in _nsa.pieces(inputs):
            branches = torch.stack([branch.out for branch in piece.branches], -2)
            whole = (piece.gates.unsqueeze(-1) * branches).sum(-2)
            out[piece.rows] = whole.masked_fill(piece.hangs.view(-1, 1, 1), HANGS_ON_ROUNDING)
        return out

    def legal(self, inputs: Inputs, oracle: Tensor) -> Legal | None:
        return _legal.of_rounding(inputs, oracle)

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        import torch

        grads = {
            name: torch.zeros_like(inputs.tensors[name], dtype=torch.float64)
            for name in self.differentiable
        }
        for name in ("q", "gates"):
            grads[name].fill_(NOT_LOOKED_AT)
        for piece in _nsa.pieces(inputs):
            _nsa.accumulate(piece, grad_out, inputs, grads)
        return grads


def _alike(x: Tensor, common: Tensor, share: float) -> None:
    """Add to normal values, in place, what they have in common; queries keep their size."""
    x += common * share


def _complete(tokens: _draws.Ints, shape: NsaShape) -> _draws.Ints:
    """Compressed keys that are complete after so many tokens."""
    return np.maximum(0, (tokens - shape.block) // shape.stride + 1)


def _selected(position: _draws.Ints, shape: NsaShape) -> _draws.Ints:
    """Keys that a query of each position selects: the last of its blocks is cut off at it."""
    blocks = np.minimum(position // shape.block_size + 1, shape.n_selected)
    return (blocks - 1) * shape.block_size + position % shape.block_size + 1


OP = NsaAttention()
