import pytest

from nsabench.output.compare import compare, read
from tests.runs import make_run


def ratios_of(comparison, name, later=0):
    shifts = [c.shifts[later] for c in comparison.cells if c.implementation == name]
    return [shift.ratio for shift in shifts if shift.ratio is not None]


@pytest.fixture
def compared(tmp_path):
    """Return a function that compares made-up runs in the folders `run0`, `run1` and so on."""

    def made(*runs, **how):
        folders = [make_run(tmp_path / f"run{i}", run) for i, run in enumerate(runs)]
        return compare(read(folders), **how)

    return made
