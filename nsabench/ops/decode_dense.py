"""decode_dense: one token against its whole cache, what a decoder without NSA does.

q [B,HQ,D]; caches k [B,H,S,D], v [B,H,S,Dv], the token itself at S - 1 -> out [B,HQ,Dv].
"""

from nsabench.ops._contract import by_device
from nsabench.ops._decode import DecodeOp


class DecodeDense(DecodeOp):
    name = "decode_dense"
    check_shapes = by_device(
        cpu=("B=1,S=200,HQ=4,H=2,D=32", "B=2,S=77,HQ=4,H=2,D=32"),
        cuda=("B=8,S=8192,HQ=64,H=4,D=128", "B=3,S=5000,HQ=64,H=4,D=128"),
    )


OP = DecodeDense()
