from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from nsabench.output import ci
from nsabench.output.compare import Comparison, compare, read
from tests.runs import Made, make_run

Compared = Callable[..., Comparison]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """Compare runs that come out as told; the first is `run0`."""

    def made(*runs: Made, **how: object) -> Comparison:
        folders = [make_run(tmp_path / f"run{i}", run) for i, run in enumerate(runs)]
        return compare(read(folders), **how)  # type: ignore[arg-type]

    return made


def failures(comparison: Comparison, *, slower: bool) -> list[str]:
    """Why a gate stays shut."""
    tests = ci.of_comparison(comparison, slower=slower)
    return [test.sentence for test in tests if test.failed]
