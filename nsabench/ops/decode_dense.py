"""decode_dense: one token against its whole cache, as in a decoder without NSA.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv].
"""

from nsabench.ops._decode import DecodeOp


class DecodeDense(DecodeOp):
    name = "decode_dense"


OP = DecodeDense()
