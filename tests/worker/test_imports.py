"""Modules that a measuring process must not load, because they add threads and memory."""

import subprocess
import sys

import pytest

ASIDE = ("pyarrow", "rich", "jinja2", "cryptography")


def printed(code):
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    return done.stdout.split()


@pytest.mark.parametrize("module", ["nsabench.worker.__main__", "nsabench.worker.session"])
def test_a_worker_loads_nothing_of_results_and_reports(module):
    code = f"import sys, {module}; print(*(m for m in {ASIDE!r} if m in sys.modules))"
    assert printed(code) == []


def test_a_case_imports_no_compiler_that_nobody_uses():
    """It takes seconds in every worker, and longer where no bytecode is at hand."""
    code = """
import sys, torch
from nsabench.checker.diagnosis.evidence import coordinates
from nsabench.worker.guard import forget_earlier_cases
at = coordinates(torch.arange(24), (2, 3, 4))
assert torch.equal((at[0] * 3 + at[1]) * 4 + at[2], torch.arange(24))
import torch._dynamo
forget_earlier_cases()
print(*(m for m in sys.modules if m.startswith("torch._inductor.cudagraph_trees")))
"""
    assert printed(code) == []
