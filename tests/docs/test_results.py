"""The runs that are kept in docs/results can be read, and those that are signed verify."""

from __future__ import annotations

from pathlib import Path

import pytest

from nsabench.evidence.manifest import MANIFEST, verify
from nsabench.output.compare import compare, read

RESULTS = Path(__file__).parents[2] / "docs" / "results"
KEPT = sorted(plan.parent for plan in RESULTS.rglob("plan.yaml"))


def test_there_are_some() -> None:
    assert KEPT


@pytest.mark.parametrize("run", KEPT, ids=lambda run: run.name)
def test_a_kept_run(run: Path) -> None:
    if (run / MANIFEST).exists():
        assert verify(run).broken is None
    found = compare(read([run, run]))
    assert {step.ratio for cell in found.cells for step in cell.steps} <= {None, 1.0}
    assert f"`{run.relative_to(RESULTS)}`" in (RESULTS / "README.md").read_text()


def test_pages_stay_small() -> None:
    pages = list(RESULTS.rglob("report.html"))
    assert all(page.stat().st_size < 1_500_000 for page in pages)
