"""decode_compressed: the compressed branch of a decode step, one token against compressed keys.

q [B,HQ,D]; complete compressed keys k [B,H,Nc,D], v [B,H,Nc,Dv] -> out [B,HQ,Dv]. A cache of S
tokens has Nc = (S - block) // stride + 1 such keys (arXiv 2502.11089, section 3.3.1). The token
sees all of them.
"""

from __future__ import annotations

from pydantic import model_validator

from nsabench.ops._decode import CacheShape, DecodeOp, count_compressed
from nsabench.ops._nsa_equations import CompressionSizes


class CompressedCacheShape(CompressionSizes, CacheShape):
    @model_validator(mode="after")
    def _fits(self) -> CompressedCacheShape:
        count_compressed(self.S, self.block, self.stride)
        return self

    @property
    def cached(self) -> int:
        return count_compressed(self.S, self.block, self.stride)


class DecodeCompressed(DecodeOp):
    name = "decode_compressed"
    shape_model = CompressedCacheShape


OP = DecodeCompressed()
