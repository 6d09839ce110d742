"""What a process that measures does not load, since threads and memory of it would be there too."""

from __future__ import annotations

import subprocess
import sys

import pytest

ASIDE = ("pyarrow", "rich", "jinja2", "cryptography")


@pytest.mark.parametrize(
    "module", ["nsabench.execution.worker.__main__", "nsabench.execution.worker.session"]
)
def test_a_worker_loads_nothing_of_results_and_reports(module: str) -> None:
    code = f"import sys, {module}; print(*(m for m in {ASIDE!r} if m in sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=200, check=True
    )
    assert done.stdout.split() == []
