"""Importing the package is cheap: it loads no module of torch that most programs never use."""

import subprocess
import sys

SOURCE = """
import sys
import torch, triton
before = {name for name in ("torch._dynamo", "torch._inductor", "sympy") if name in sys.modules}
import nsa_kernels
others = {"nsa_kernels.integrations", "transformers", "fla"}
watched = {"torch._dynamo", "torch._inductor", "sympy"} | others
print(*sorted(watched.intersection(sys.modules) - before))
for name in [name for name in sys.modules if name.startswith("nsa_kernels")]:
    del sys.modules[name]
sys.modules["triton"] = None
import nsa_kernels
"""


def test_an_import_loads_no_other_library_and_says_that_triton_is_missing():
    """Otherwise every program would wait for torch's compiler, and longer for Transformers."""
    done = subprocess.run(
        [sys.executable, "-c", SOURCE], capture_output=True, text=True, timeout=100
    )
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError") and "pip install triton" in last
    assert done.stdout.split() == []
