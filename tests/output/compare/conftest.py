from collections.abc import Callable
from pathlib import Path

import pytest

from nsabench.output.compare import RunComparison, compare, read
from tests.runs import Made, make_run

Compared = Callable[..., RunComparison]


def ratios_of(comparison: RunComparison, name: str, later: int = 0) -> list[float]:
    shifts = [c.shifts[later] for c in comparison.cells if c.implementation == name]
    return [shift.ratio for shift in shifts if shift.ratio is not None]


@pytest.fixture
def compared(tmp_path: Path) -> Compared:
    """Compare runs that come out as told; the first is `run0`."""

    def made(*runs: Made, **how: object) -> RunComparison:
        folders = [make_run(tmp_path / f"run{i}", run) for i, run in enumerate(runs)]
        return compare(read(folders), **how)  # type: ignore[arg-type]

    return made
