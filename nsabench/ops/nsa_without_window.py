"""nsa_without_window: NSA as libraries compute it: no window, and compressed keys do not overlap.

q [B,T,HQ,D], k [B,T,H,D], v [B,T,H,Dv], gates [B,T,HQ,2] -> out [B,T,HQ,Dv]. The gates weigh a
compressed and a selected branch. Compressed keys and values are means of whole blocks of
`block_size` tokens. A query sees the compressed keys of blocks that end at the query or before it.
It selects `n_selected` blocks as in `nsa_attention`. The score of a block is the weight of its
compressed key, summed over the heads of the group. Without `g_swa`, `parallel_nsa` of fla-core
computes this.

`packed` is as in `causal_attention`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsabench.ops._nsa_equations import SelectionSizes
from nsabench.ops._op import by_device
from nsabench.ops._sequences import SequencesShape
from nsabench.ops.nsa_attention import NsaAttention


class WithoutWindowShape(SelectionSizes, SequencesShape):
    """Each block is also one compressed key."""

    @property
    def block(self) -> int:
        return self.block_size

    @property
    def stride(self) -> int:
        return self.block_size

    @property
    def window(self) -> int:
        return 0


class NsaWithoutWindow(NsaAttention):
    name = "nsa_without_window"
    check_shapes = by_device(
        cpu=(
            "B=1,T=120,HQ=4,H=2,D=32,block_size=16,n_selected=4",
            "B=2,T=77,HQ=4,H=2,D=32,block_size=16,n_selected=3",
        ),
        cuda=NsaAttention.check_shapes["cuda"],
    )
    options = ("block_size", "n_selected", "sm_scale", "max_seqlen")
    gates = 2
    shape_model = WithoutWindowShape

    def sizes(self, options: Mapping[str, Any]) -> dict[str, int]:
        size = int(options["block_size"])
        of_keys = dict.fromkeys(("block", "stride", "block_size"), size)
        return {**of_keys, "n_selected": int(options["n_selected"]), "window": 0}


OP = NsaWithoutWindow()
