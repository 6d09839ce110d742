"""nsa_attention: Native Sparse Attention as a whole, prefill and training.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], gates [B,T,HQ,3] -> out [B,T,HQ,Dv]. The gates weigh a
compressed, a selected and a window branch in this order (arXiv 2502.11089, section 3.3). Compressed
keys and values are means of `block` tokens, one every `stride` tokens. A query selects `n_selected`
blocks of `block_size` tokens: the first, the last two, and the blocks with the highest scores. The
lowest index wins among equal scores. The window is the last `window` keys. `packed` is as in
`causal_attention`.

If rounding could decide the selection of a query that the oracle computes, the query is drawn
again, up to 64 times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _nsa_equations, _sequences
from nsabench.ops._attention import AttentionPart
from nsabench.ops._nsa_equations import NsaSizes
from nsabench.ops._op import Inputs, by_device, draw_normal
from nsabench.ops._sequences import SequenceOp, SequencesShape

if TYPE_CHECKING:
    from torch import Tensor

SIZES = ("block", "stride", "block_size", "n_selected", "window")
TRIES = 64  # the most times that a query is drawn again if rounding could decide its selection
# Limits the float64 keys, values and weights of a chunk of queries to a quarter of a GiB.
CHUNK_ELEMENTS = 1 << 25
# Keys of a stride share a normal vector times the first factor, query heads of a group another
# times the second. So, as in a model, neighbours are alike, and their mean represents them.
KEYS_ALIKE, QUERIES_ALIKE = 1.0, 0.7


class NsaShape(NsaSizes, SequencesShape):
    pass


class NsaAttention(SequenceOp):
    name = "nsa_attention"
    check_shapes = by_device(
        cpu=(
            "B=1,T=120,HQ=4,H=2,D=32,block=8,stride=4,block_size=16,n_selected=4,window=12",
            "B=2,T=77,HQ=4,H=2,D=32,block=8,stride=4,block_size=16,n_selected=3,window=30",
        ),
        cuda=SequenceOp.check_shapes["cuda"],
    )
    arguments = ("q", "k", "v", "gates")
    options: ClassVar[tuple[str, ...]] = (*SIZES, "sm_scale", "max_seqlen")
    differentiable = ("q", "k", "v", "gates")
    gates = 3
    shape_model: ClassVar[type[SequencesShape]] = NsaShape
    directions = (Direction.FORWARD, Direction.BACKWARD, Direction.STEP)
    samples_queries = True

    def terms(self, shape: Any) -> int:
        selected = min(shape.n_selected * shape.block_size, shape.T)
        return int(shape.D + shape.T // shape.stride + selected + min(shape.window, shape.T))

    def seen(self, lengths: list[int], shape: Any) -> int:
        """Add to the compressed keys only the larger of selection and window, which may overlap."""
        compressed = selected = window = 0
        for length in lengths:
            position = np.arange(length)
            complete = (position + 1 - shape.block) // shape.stride + 1
            blocks = np.minimum(position // shape.block_size + 1, shape.n_selected)
            # The last block ends with the query.
            of_blocks = (blocks - 1) * shape.block_size + position % shape.block_size + 1
            compressed += int(np.maximum(0, complete).sum())
            selected += int(of_blocks.sum())
            window += int(np.minimum(position + 1, shape.window).sum())
        return compressed + max(selected, window)

    def sizes(self, options: Mapping[str, Any]) -> dict[str, int]:
        return {name: int(options[name]) for name in SIZES}

    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        import torch

        normal = draw_normal(dtype, device, seed)
        b, t, _ = self.axes(shape, distribution, seed)[0]
        q, k = normal(b, t, shape.HQ, shape.D), normal(b, t, shape.H, shape.D)
        q.unflatten(2, (shape.H, -1)).add_(normal(b, t, shape.H, 1, shape.D) * QUERIES_ALIKE)
        strides = -(-t // shape.stride)
        common = normal(b, strides, shape.H, shape.D).repeat_interleave(shape.stride, 1)[:, :t]
        k += common * KEYS_ALIKE
        v = normal(b, t, shape.H, shape.Dv)
        gates = torch.sigmoid(normal(b, t, shape.HQ, self.gates))
        tensors = {"q": q, "k": k, "v": v, "gates": gates}
        tensors |= self.draw_indices(shape, distribution, seed, device)
        inputs = Inputs(tensors, self.drawn_options(shape, distribution, seed), seed)
        # Fake tensors, on which kernels are compiled without a GPU, have no values.
        if type(q) is torch.Tensor:
            self._settle(inputs, normal)
        return inputs

    def _settle(self, inputs: Inputs, normal: Callable[..., Tensor]) -> None:
        import torch

        q, tokens = inputs.tensors["q"], _sequences.sample_tokens(inputs)
        for _ in range(TRIES):
            places = list(self.undecided(inputs, tokens))
            if not places:
                return
            for place in places:
                _, some, heads = place
                size = len(some), heads.stop - heads.start, q.shape[3]
                q[place] = normal(*size) + normal(size[0], 1, size[2]) * QUERIES_ALIKE
            tokens = torch.cat([batch * q.shape[1] + some for batch, some, _ in places]).unique()

    def undecided(self, inputs: Inputs, tokens: Tensor) -> Iterator[tuple[int, Tensor, slice]]:
        q, k, sizes = inputs.tensors["q"], inputs.tensors["k"], self.sizes(inputs.options)
        spacing, size = (sizes["block"], sizes["stride"]), sizes["block_size"]
        scale = inputs.options["sm_scale"]
        resolved = _nsa_equations.RESOLVED[str(q.dtype)]
        if {*spacing} == {size}:
            resolved *= _nsa_equations.OF_ONE_KEY
        for batch, start, end, own in _sequences.split_by_sequence(inputs, tokens):
            for head in range(k.shape[2]):
                k_cmp = _nsa_equations.means(k[batch, start:end, head], *spacing)
                heads = _heads_of(inputs, head)
                for some in own.split(max(1, CHUNK_ELEMENTS // (q.shape[2] * len(k_cmp) + 1))):
                    position, queries = some - start, q[batch, some, heads].double()
                    p = _nsa_equations.compressed_weights(queries, k_cmp, position, *spacing, scale)
                    ranked = _nsa_equations.rank_blocks(p, position, end - start, *spacing, size)
                    hangs = _nsa_equations.depends_on_rounding(
                        ranked, sizes["n_selected"], resolved
                    )
                    if bool(hangs.any()):
                        yield batch, some[hangs], heads

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        return _sequences.quieten_unsampled(inputs, super().draw_grad(inputs, seed))

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        k, v = inputs.tensors["k"], inputs.tensors["v"]
        sizes, scale = self.sizes(inputs.options), inputs.options["sm_scale"]
        group, width = inputs.tensors["q"].shape[2] // k.shape[2], k.shape[3] + v.shape[3]
        for batch, start, end, own in _sequences.split_by_sequence(inputs):
            keys = sizes["n_selected"] * sizes["block_size"] + min(sizes["window"], end - start)
            every = keys + (end - start) // sizes["stride"]
            step = max(1, CHUNK_ELEMENTS // (keys * width + 3 * group * every))
            for head in range(k.shape[2]):
                for some in own.split(step):
                    call = partial(_attend, position=some - start, sm_scale=scale, **sizes)
                    queries = (batch, some, _heads_of(inputs, head))
                    yield AttentionPart(queries, (batch, slice(start, end), head), call)


def _heads_of(inputs: Inputs, head: int) -> slice:
    group = inputs.tensors["q"].shape[2] // inputs.tensors["k"].shape[2]
    return slice(head * group, (head + 1) * group)


def _attend(q: Tensor, k: Tensor, v: Tensor, gates: Tensor, **options: Any) -> Tensor:
    k_cmp, v_cmp = (_nsa_equations.means(x, options["block"], options["stride"]) for x in (k, v))
    return _nsa_equations.attend(q, k, v, gates, k_cmp, v_cmp, **options)


OP = NsaAttention()
