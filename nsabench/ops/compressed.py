"""compressed: attention over compressed keys. A query sees keys whose tokens are not after it.

q [B,T,HQ,D], k [B,Nc,H,D], v [B,Nc,H,Dv] -> out [B,T,HQ,Dv]. Compressed key i stands for `block`
tokens from token i * stride. Query t sees the first (t + 1 - block) // stride + 1 keys (arXiv
2502.11089, section 3.3.1). Before token block - 1 a query sees no key, and out is 0.
`packed` is as in `causal_attention`, and cu_keys int32 [B+1] says where the keys of each sequence
begin.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from pydantic import model_validator

from nsabench.ops._attention import Ints
from nsabench.ops._nsa_equations import CompressionSizes
from nsabench.ops._op import Inputs, extend_on_cpu
from nsabench.ops._sequences import BandedOp, SequencesShape, sequence_ends, spread_over_tokens

if TYPE_CHECKING:
    from torch import Tensor


class CompressedShape(CompressionSizes, SequencesShape):
    @model_validator(mode="after")
    def _fits(self) -> CompressedShape:
        if self.block > self.T:
            raise ValueError(f"{self.T=} tokens are fewer than the {self.block=} of one key")
        return self


class Compressed(BandedOp):
    name = "compressed"
    check_shapes = extend_on_cpu(BandedOp.check_shapes, *["block=16,stride=8"] * 2)
    optional = ("cu_seqlens", "cu_keys")
    options = ("block", "stride", "sm_scale", "max_seqlen")
    shape_model = CompressedShape

    def count_keys(self, tokens: Ints, shape: CompressedShape) -> Ints:
        return np.maximum(0, (tokens - shape.block) // shape.stride + 1)

    def seen(self, lengths: list[int], shape: CompressedShape) -> int:
        return sum(int(self.count_keys(np.arange(n) + 1, shape).sum()) for n in lengths)

    def bounds(self, inputs: Inputs) -> tuple[Tensor, Tensor]:
        import torch

        cu, cu_keys = (inputs.tensors.get(name) for name in ("cu_seqlens", "cu_keys"))
        block, stride = int(inputs.options["block"]), int(inputs.options["stride"])
        lo = start = sequence_ends(inputs)[0]
        if cu is not None and cu_keys is not None:
            lo = spread_over_tokens(cu_keys[:-1], cu)
        seen = torch.arange(len(start), device=start.device) - start + 1
        complete = torch.div(seen - block, stride, rounding_mode="floor") + 1
        return lo, lo + complete.clamp(min=0)


OP = Compressed()
