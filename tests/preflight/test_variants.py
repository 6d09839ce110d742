"""How many variants of a kernel are compiled for several lengths and numbers of chosen blocks.

As a program, it prints that number for each kernel, and the alignments of the kernels' lists.
"""

import json
import os
import subprocess
import sys
from collections import defaultdict

from nsabench import registry
from nsabench.model.vocabulary import DType
from nsabench.preflight import record, targets
from tests.checking import a_case

# Tokens, and the blocks that a query chooses. All have one size of work items, and several chunks.
CASES = ((40_001, 16), (41_777, 16), (40_001, 64))
LISTED = ("forward_kernel", "backward_kernel", "spill_kernel")
SIZES = {"B": 1, "HQ": 16, "H": 1, "D": 128, "Dv": 128, "block": 32, "stride": 16}
SIZES |= {"block_size": 64, "window": 512}


def main():
    (item,) = [i for i in registry.load() if (i.op, i.name) == ("nsa_attention", "nsa")]
    variants = defaultdict(set)
    alignments = set()
    for length, chosen in CASES:
        sizes = SIZES | {"T": length, "n_selected": chosen}
        case = a_case("nsa_attention", sizes, dtype=DType.BFLOAT16, direction="backward")
        for call in record.list_launches(item, case, targets.ARCHITECTURES["sm_90"]):
            if call.kernel in LISTED:
                variants[call.kernel].add(call.key)
                alignments.add(call.arguments["first_ptr"].data_ptr() % 16)
    print(json.dumps([{name: len(keys) for name, keys in variants.items()}, sorted(alignments)]))


def test_block_selection_compiles_once_for_all_lengths():
    """Lists begin at any address. Neither their alignment nor the number of blocks that a query
    chooses may add variants."""
    # The program records launches, which the interpreter cannot do.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", __name__],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    variants, alignments = json.loads(done.stdout)
    assert variants == dict.fromkeys(LISTED, 1)
    assert len(alignments) > 1, "all lists were aligned alike: the lengths show nothing"


if __name__ == "__main__":
    main()
