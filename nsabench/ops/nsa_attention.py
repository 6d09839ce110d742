"""nsa_attention: Native Sparse Attention as a whole, prefill and training.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], gates [B,T,HQ,3] -> out [B,T,HQ,Dv]. The gates weigh a
compressed, a selected and a window branch in this order (arXiv 2502.11089, section 3.3). Compressed
keys and values are means of `block` tokens, one every `stride`. A query selects `n_selected` blocks
of `block_size` tokens: the first, the last two, and the blocks with the highest scores. The lowest
index wins among equal scores. The window is the last `window` keys. `packed`: B sequences of
unequal lengths lie one after another in q [1,B*T,HQ,D]. Each sees only itself. cu_seqlens int32
[B+1] says where they begin. max_seqlen: no sequence is longer. The caller knows it on the host.

If rounding decides which block is selected, the query is left out of the comparison and counted.
Its output is held to bounds that every such choice keeps. In a backward, the gradient of its output
is almost zero, so that dk and dv do not depend on the choice.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from pydantic import model_validator

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _draws, _nsa, _sampled
from nsabench.ops._contract import Inputs, Legal, Size, by_device
from nsabench.ops._left_out import NOT_COMPUTED, ROUNDING_DECIDES
from nsabench.ops._nsa import LOCAL
from nsabench.ops._sequences import SequenceOp, SequencesShape

if TYPE_CHECKING:
    from torch import Tensor

TRIES = 64  # to draw a last query whose selection rounding does not decide
# The share that the keys of a stride, and the queries of a group, have in common. As in a model,
# neighbours are alike, so that their mean says something about them.
KEYS_ALIKE, QUERIES_ALIKE = 1.0, 0.7


class NsaShape(SequencesShape):
    """B sequences of T tokens (packed: of T in the mean). HQ query heads on H key heads. Head dims
    D (q, k) and Dv (v; D unless given). A compressed key has `block` tokens, and one begins every
    `stride` tokens. `n_selected` blocks of `block_size` tokens; `window` keys.
    """

    block: Size = 32
    stride: Size = 16
    block_size: Size = 64
    n_selected: Size = 16
    window: Size = 512

    @model_validator(mode="after")
    def _fits(self) -> NsaShape:
        if self.block % self.stride or self.block_size % self.stride:
            raise ValueError(f"{self.stride=} does not divide {self.block=} and {self.block_size=}")
        if self.n_selected <= LOCAL:
            raise ValueError(f"{self.n_selected=} does not hold the first and {LOCAL} local blocks")
        return self

    def seen_by_branch(self, lengths: list[int]) -> tuple[int, int, int]:
        """Count the keys that all queries see together in the compressed, selected and window
        branch.
        """
        compressed = selected = window = 0
        for length in lengths:
            position = np.arange(length)
            complete = (position + 1 - self.block) // self.stride + 1
            blocks = np.minimum(position // self.block_size + 1, self.n_selected)
            # The last block ends with the query.
            of_blocks = (blocks - 1) * self.block_size + position % self.block_size + 1
            compressed += int(np.maximum(0, complete).sum())
            selected += int(of_blocks.sum())
            window += int(np.minimum(position + 1, self.window).sum())
        return compressed, selected, window


class NsaAttention(SequenceOp):
    name = "nsa_attention"
    check_shapes = by_device(
        cpu=(
            "B=1,T=120,HQ=4,H=2,D=32,block=8,stride=4,block_size=16,n_selected=4,window=12",
            "B=2,T=77,HQ=4,H=2,D=32,block=8,stride=4,block_size=16,n_selected=3,window=30",
        ),
        cuda=("B=1,T=4096,HQ=64,H=4,D=128", "B=2,T=1000,HQ=64,H=4,D=128"),
    )
    arguments = ("q", "k", "v", "gates")
    options: ClassVar[tuple[str, ...]] = (
        *("block", "stride", "block_size", "n_selected", "window"),
        *("sm_scale", "max_seqlen"),
    )
    differentiable = ("q", "k", "v", "gates")
    gates = 3
    shape_model: ClassVar[type[SequencesShape]] = NsaShape
    directions = (Direction.FORWARD, Direction.BACKWARD, Direction.STEP)
    leaves_rows_out = True
    rows_stand_alone = False  # which queries are sampled depends on all of them

    def terms(self, shape: Any) -> int:
        """A logit sums D products, the output the values of its branches."""
        selected = min(shape.n_selected * shape.block_size, shape.T)
        return int(shape.D + shape.T // shape.stride + selected + min(shape.window, shape.T))

    def seen(self, lengths: list[int], shape: Any) -> int:
        """Keys that selection and window share need be computed once, so the larger counts."""
        compressed, selected, window = shape.seen_by_branch(lengths)
        return int(compressed + max(selected, window))

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        normal = _draws.normal(dtype, device, seed)
        b, t, _ = self.axes(shape, distribution, seed)[0]
        q, k = normal(b, t, shape.HQ, shape.D), normal(b, t, shape.H, shape.D)
        q.unflatten(2, (shape.H, -1)).add_(normal(b, t, shape.H, 1, shape.D) * QUERIES_ALIKE)
        strides = -(-t // shape.stride)
        common = normal(b, strides, shape.H, shape.D).repeat_interleave(shape.stride, 1)[:, :t]
        k += common * KEYS_ALIKE
        v = normal(b, t, shape.H, shape.Dv)
        gates = torch.sigmoid(normal(b, t, shape.HQ, 3))
        tensors = {"q": q, "k": k, "v": v, "gates": gates}
        tensors |= self.draw_indices(shape, distribution, seed, device)
        inputs = Inputs(tensors, self.drawn_options(shape, distribution, seed))
        last = torch.tensor([b * t - 1], device=device)
        # Where a kernel is compiled without a GPU, tensors have no values.
        for _ in range(TRIES if type(q) is torch.Tensor else 0):
            if not any(bool(piece.hangs.any()) for piece in _nsa.pieces(inputs, last)):
                break
            # The last row is where tails are lost, so that one is compared.
            q[-1, -1] = normal(shape.HQ, shape.D)
            q[-1, -1].unflatten(0, (shape.H, -1)).add_(normal(shape.H, 1, shape.D))
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
        out = torch.full(shape, NOT_COMPUTED, dtype=torch.float64, device=q.device)
        for piece in _nsa.pieces(inputs):
            branches = torch.stack([branch.out for branch in piece.branches], -2)
            whole = (piece.gates.unsqueeze(-1) * branches).sum(-2)
            out[piece.rows] = whole.masked_fill(piece.hangs.view(-1, 1, 1), ROUNDING_DECIDES)
        return out

    def legal(self, inputs: Inputs, oracle: Tensor) -> Legal | None:
        return _nsa.legal(inputs, oracle)

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        import torch

        grads = {
            name: torch.zeros_like(inputs.tensors[name], dtype=torch.float64)
            for name in self.differentiable
        }
        for name in ("q", "gates"):
            grads[name].fill_(NOT_COMPUTED)
        for piece in _nsa.pieces(inputs):
            _nsa.accumulate(piece, grad_out, inputs, grads)
        return grads


OP = NsaAttention()
