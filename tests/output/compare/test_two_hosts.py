"""The same code on two hosts, measured: no ghost is called faster, and a real loss is found.

The runs 20261121T104829Z-0beac1 and 20261122T101441Z-a3e88b were made on the H200 of two hosts,
whose timers add 2.7 and 4.4 µs. What they say of dense rows is packed here without a signature. The
baselines are the same code in both, which `of_the_same_code` says where a test needs it.
"""

from __future__ import annotations

import tarfile
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from nsabench.model.vocabulary import Difference, Role
from nsabench.output.compare import BAND, ComparedCell, Side, compare, read
from tests.runs import with_comparison

PACKED = Path(__file__).parents[2] / "data" / "rows-on-two-hosts.tar.xz"
MOST_GHOSTS = 0.02
VERDICTS = (Difference.FASTER, Difference.SLOWER)


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> tuple[Side, Side]:
    folder = tmp_path_factory.mktemp("hosts")
    with tarfile.open(PACKED) as packed:
        packed.extractall(folder, filter="data")
    first, second = read([folder / "rows-on-two-hosts" / name for name in ("first", "second")])
    return first, second


def of_the_same_code(side: Side) -> Side:
    sources = {**side.plan.sources, "nsabench": "a" * 64}
    return replace(side, plan=side.plan.model_copy(update={"sources": sources}))


def ghosts(cells: Iterable[ComparedCell]) -> float:
    differences = [c.shifts[0].difference for c in cells if c.shifts[0].difference is not None]
    counts = Counter(differences)
    return sum(counts[verdict] for verdict in VERDICTS) / len(differences)


@pytest.mark.parametrize("told", [False, True])
def test_candidates_that_did_not_change_get_no_verdict(
    sides: tuple[Side, Side], told: bool
) -> None:
    """Whether or not it is known which baselines are the same code."""
    first, second = map(of_the_same_code, sides) if told else sides
    cells = [
        c for c in compare([first, second], intersection=True).cells if c.role is Role.CANDIDATE
    ]
    assert len(cells) == 228
    assert {bool(c.shifts[0].beside) for c in cells} == {told}
    assert ghosts(cells) <= MOST_GHOSTS
    ratios = [c.shifts[0].ratio for c in cells if c.shifts[0].ratio is not None]
    assert len(ratios) == 228 and median(ratios) == pytest.approx(1, abs=0.011)


def test_baselines_get_no_verdict_by_the_bands_that_the_others_teach(
    sides: tuple[Side, Side],
) -> None:
    first, second = map(of_the_same_code, sides)
    comparison = compare([first, second], intersection=True)
    cells = [c for c in comparison.cells if c.role is Role.BASELINE]
    assert len([c for c in cells if c.shifts[0].ratio is not None]) == 836
    assert ghosts(cells) <= MOST_GHOSTS
    by_rule = [c for c in compare(sides, intersection=True).cells if c.role is Role.BASELINE]
    assert ghosts(by_rule) > MOST_GHOSTS  # a fixed band is not enough
    widths = [(c.records[0].median_ms or 0, c.shifts[0].band or 0) for c in cells]
    short = median(band for ms, band in widths if 0 < ms < 0.02)
    assert short > median(band for ms, band in widths if ms > 0.1) >= BAND


def test_who_was_left_out_in_one_run_is_compared_with_nothing_and_teaches_nothing(
    sides: tuple[Side, Side],
) -> None:
    """Its two calls differ by what they happen to differ by."""
    first, second = map(of_the_same_code, sides)
    before = compare([first, second], intersection=True)
    [(name, _)] = Counter(c.shifts[0].beside for c in before.cells).most_common(1)
    few = {key for key in second.samples if key[1] == name}
    called = replace(
        second,
        samples={k: t[:2] * 1.2 if k in few else t for k, t in second.samples.items()},
    )
    after = compare([first, called], intersection=True)
    cells = [c for c in after.cells if c.implementation == name and c.records[0].median_ms]
    assert name and {c.shifts[0].difference for c in cells} == {Difference.INCONCLUSIVE}
    assert {c.shifts[0].why for c in cells} == {"it was called a few times only"}
    assert not [c for c in after.cells if c.shifts[0].beside == name]


def test_a_real_loss_is_found_on_another_host(sides: tuple[Side, Side]) -> None:
    """One candidate takes 1.25 times as long on the second host; its neighbours do not."""
    first, second = map(of_the_same_code, sides)
    samples, records = dict(second.samples), dict(second.records)
    for key, r in second.records.items():
        if key[1] == "rows_cuda" and key in samples and r.median_ms and r.own.net_ms:
            samples[key] = samples[key] * 1.25
            slower = {"median_ms": r.median_ms * 1.25, "net_ms": r.own.net_ms * 1.25}
            records[key] = with_comparison(r, **slower)
    worse = replace(second, samples=samples, records=records)
    slower = compare([first, worse], intersection=True).slower(0)
    found = Counter(cell.implementation for cell, _, _ in slower)
    assert set(found) == {"rows_cuda"} and found["rows_cuda"] >= 60  # of 76


def test_where_torch_differs_nothing_is_known_to_be_the_same(sides: tuple[Side, Side]) -> None:
    first, second = map(of_the_same_code, sides)
    newer = {key: replace(r, torch="2.12.1") for key, r in second.records.items()}
    environment = second.environment.model_copy(update={"torch": "2.12.1"})
    other = replace(second, records=newer, environment=environment)
    cells = compare([first, other], intersection=True).cells
    assert {c.shifts[0].beside for c in cells} == {""}


def test_under_another_triton_what_it_compiles_teaches_nothing(sides: tuple[Side, Side]) -> None:
    first, second = map(of_the_same_code, sides)
    newer = second.environment.model_copy(update={"triton": "3.7.1"})
    other = replace(second, environment=newer)

    def says(side: Side) -> Side:
        compiled = {"sdpa_gqa": "triton"}
        infos = [
            i.model_copy(update={"compiled_by": compiled.get(i.name, "")})
            for i in side.plan.implementations
        ]
        return replace(side, plan=side.plan.model_copy(update={"implementations": infos}))

    beside = {
        c.shifts[0].beside for c in compare([says(first), says(other)], intersection=True).cells
    }
    assert beside - {""} and "sdpa_gqa" not in beside
