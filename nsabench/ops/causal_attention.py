"""causal_attention: dense attention over all keys up to the query itself.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv] -> out [B,T,HQ,Dv]. A model may run it instead of
`nsa_attention`. `packed`: B sequences follow one another in q [1,B*T,HQ,D]. cu_seqlens int32 [B+1]
says where they begin. No sequence is longer than max_seqlen, which is known on the host.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

from nsabench.model.vocabulary import Direction
from nsabench.ops._attention import AttentionPart, attend
from nsabench.ops._op import Inputs
from nsabench.ops._sequences import SequenceOp, SequencesShape, quieten_unsampled, split_by_sequence

if TYPE_CHECKING:
    from torch import Tensor

# The most float64 weights in memory at a time: a quarter of a GiB.
CHUNK_ELEMENTS = 1 << 25


class CausalAttention(SequenceOp):
    name = "causal_attention"
    options = ("sm_scale", "max_seqlen")
    shape_model = SequencesShape
    directions = (Direction.FORWARD, Direction.BACKWARD, Direction.STEP)
    samples_queries = True

    def seen(self, lengths: list[int], shape: SequencesShape) -> int:
        return sum(n * (n + 1) // 2 for n in lengths)

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        return quieten_unsampled(inputs, super().draw_grad(inputs, seed))

    def parts(self, inputs: Inputs) -> Iterator[AttentionPart]:
        import torch

        q, k = inputs.tensors["q"], inputs.tensors["k"]
        group = q.shape[2] // k.shape[2]
        for batch, start, end, own in split_by_sequence(inputs):
            for some in own.split(max(1, CHUNK_ELEMENTS // (group * (end - start)))):
                last = int(some.max()) + 1
                keep = torch.arange(start, last, device=q.device) <= some.unsqueeze(1)
                call = partial(attend, scale=inputs.options["sm_scale"], keep=keep.unsqueeze(1))
                for h in range(k.shape[2]):
                    queries = (batch, some, slice(h * group, (h + 1) * group))
                    yield AttentionPart(queries, (batch, slice(start, last), h), call)


OP = CausalAttention()
