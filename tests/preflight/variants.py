"""Prints how many variants of kernels some lengths need, and the alignments of their lists."""

from __future__ import annotations

import json
from collections import defaultdict

from nsabench import registry
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, DType
from nsabench.preflight import record, targets

LENGTHS = (40_001, 41_777)  # of one size of work items; several chunks each
LISTED = ("forward_kernel", "backward_kernel", "spill_kernel")
SIZES = {"B": 1, "HQ": 16, "H": 1, "D": 128, "Dv": 128, "block": 32, "stride": 16}
SIZES |= {"block_size": 64, "n_selected": 16, "window": 512}


def main() -> None:
    (item,) = [i for i in registry.load() if (i.op, i.name) == ("nsa_attention", "nsa")]
    variants: dict[str, set[str]] = defaultdict(set)
    alignments: set[int] = set()
    for length in LENGTHS:
        case = Case(
            op="nsa_attention",
            shape=SIZES | {"T": length},
            dtype=DType.BFLOAT16,
            direction=Direction.BACKWARD,
            distribution="dense",
            timeout_s=60,
            seed=1,
        )
        for call in record.list_launches(item, case, targets.ARCHITECTURES["sm_90"]):
            if call.kernel in LISTED:
                variants[call.kernel].add(call.key)
                alignments.add(call.arguments["first_ptr"].data_ptr() % 16)
    print(json.dumps([{name: len(keys) for name, keys in variants.items()}, sorted(alignments)]))


if __name__ == "__main__":
    main()
