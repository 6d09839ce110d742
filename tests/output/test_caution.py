"""Every output marks ratios that show what a mask costs."""

from dataclasses import replace

import pytest
from rich.console import Console

from nsabench.model.vocabulary import NO_SPECIALISED, Kind
from nsabench.output.compare import compare, document, read
from nsabench.output.report import Facts
from nsabench.output.report.page import render as page_of
from tests.runs import Made, make_run

GENERAL = Made(kind=Kind.GENERAL, ratio=lambda length: 1.5 if length < 256 else 4.0)
IN_HALF = f"{NO_SPECIALISED} in 8 of 16"


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    other = replace(GENERAL, run_id="20260102T000000Z-abc124", seed=1)
    return [make_run(folder / "first", GENERAL), make_run(folder / "second", other)]


def test_a_comparison(runs):
    comparison = compare(read(runs))
    console = Console(width=200, record=True)
    console.print(document.render(comparison))
    assert console.export_text().count(IN_HALF) == 2
    [cell] = [c for c in document.as_document(comparison).cells if c.role == "candidate"][-1:]
    assert [m.caution for m in cell.runs] == [NO_SPECIALISED] * 2
    assert document.to_markdown(comparison).count(IN_HALF) == 2


@pytest.mark.parametrize(("device", "said"), [(1.5, False), (4.0, True)])
def test_the_legend_of_a_report(tmp_path, device, said):
    """Cells show the regime `device`, so the legend explains marks of this regime only."""
    made = Made(kind=Kind.GENERAL, ratio=lambda _: device, queue_ratio=lambda _: 4.0)
    facts = Facts.read(make_run(tmp_path / "run", made))
    assert all(r.caution for r in facts.candidates)
    assert (f"✕ invalid † {NO_SPECIALISED}." in page_of(facts)) is said
