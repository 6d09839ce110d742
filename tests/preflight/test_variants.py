"""The number of variants of a kernel for sequences of many lengths."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from tests.preflight.variants import LISTED


def test_block_selection_compiles_once_for_all_lengths() -> None:
    """Lists begin at any address. A variant for each alignment would make up to eight of them."""
    # Launches are recorded, which the interpreter does not do.
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.preflight.variants"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    variants, alignments = json.loads(done.stdout)
    assert variants == dict.fromkeys(LISTED, 1)
    assert len(alignments) > 1, "all lists were aligned alike: the lengths show nothing"
