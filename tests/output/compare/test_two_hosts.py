"""Measurements of equal code on two hosts: no false speedup is reported, and a real loss is found.

The runs 20261121T104829Z-0beac1 and 20261122T101441Z-a3e88b were made on the H200 of two hosts,
whose timers add 2.7 and 4.4 µs. Their results for dense rows are stored here without a signature.
The baselines are the same code in both runs. `of_the_same_code` tells nsabench so.
"""

import tarfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from statistics import median

import pytest

from nsabench.model.vocabulary import Difference, Role
from nsabench.output.compare import BAND, compare, read
from tests.runs import with_comparison

PACKED = Path(__file__).parents[2] / "data" / "rows-on-two-hosts.tar.xz"
MOST_GHOSTS = 0.02
VERDICTS = (Difference.FASTER, Difference.SLOWER)


@pytest.fixture(scope="module")
def sides(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hosts")
    with tarfile.open(PACKED) as packed:
        packed.extractall(folder, filter="data")
    first, second = read([folder / "rows-on-two-hosts" / name for name in ("first", "second")])
    return first, second


def of_the_same_code(side):
    sources = {**side.plan.sources, "nsabench": "a" * 64}
    return replace(side, plan=side.plan.model_copy(update={"sources": sources}))


@pytest.fixture(scope="module")
def compared(sides):
    """Return the comparison without, and with, the knowledge that baselines are the same code."""
    return [compare(pair, intersection=True) for pair in (sides, [*map(of_the_same_code, sides)])]


def ghosts(cells):
    differences = [c.shifts[0].difference for c in cells if c.shifts[0].difference is not None]
    counts = Counter(differences)
    return sum(counts[verdict] for verdict in VERDICTS) / len(differences)


def narrowest(cells):
    return min(cell.shifts[0].band for cell in cells if cell.shifts[0].band is not None)


@pytest.mark.parametrize("told", [False, True])
def test_candidates_that_did_not_change_get_no_verdict(compared, told):
    """This holds whether or not it is known which baselines are the same code."""
    cells = [c for c in compared[told].cells if c.role is Role.CANDIDATE]
    assert len(cells) == 228
    assert (narrowest(cells) > 1.1 * BAND) == told
    assert ghosts(cells) <= MOST_GHOSTS
    ratios = [c.shifts[0].ratio for c in cells if c.shifts[0].ratio is not None]
    assert len(ratios) == 228 and median(ratios) == pytest.approx(1, abs=0.011)


def test_baselines_get_no_verdict_by_the_band_that_they_teach(compared):
    by_rule, cells = ([c for c in x.cells if c.role is Role.BASELINE] for x in compared)
    assert len([c for c in cells if c.shifts[0].ratio is not None]) == 836
    assert ghosts(cells) <= MOST_GHOSTS
    assert ghosts(by_rule) > MOST_GHOSTS  # a fixed band is not enough


def test_a_cell_that_was_called_a_few_times_is_not_compared(sides):
    """Two calls are too few to show their noise."""
    first, second = map(of_the_same_code, sides)
    few = {key for key in second.samples if key[1] == "sdpa_gqa"}
    samples = {k: t[:2] * 1.2 if k in few else t for k, t in second.samples.items()}
    after = compare([first, replace(second, samples=samples)], intersection=True)
    cells = [c for c in after.cells if c.implementation == "sdpa_gqa" and c.records[0].median_ms]
    assert cells and {c.shifts[0].difference for c in cells} == {Difference.INCONCLUSIVE}
    assert {c.shifts[0].why for c in cells} == {"it was called a few times only"}


def test_a_real_loss_is_found_on_another_host(sides):
    """One candidate takes 1.25 times as long on the second host; other implementations do not."""
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
    assert set(found) == {"rows_cuda"} and found["rows_cuda"] >= 60


@pytest.mark.parametrize("changed", ["torch", "triton"])
def test_under_other_versions_less_is_known_to_be_the_same(sides, changed):
    """Another torch changes all code, and another Triton all code that it compiles."""
    first, second = map(of_the_same_code, sides)
    newer = second.environment.model_copy(update={changed: "9.9.9"})

    def compiled(side):
        infos = [i.model_copy(update={"compiled_by": "triton"}) for i in side.plan.implementations]
        return replace(side, plan=side.plan.model_copy(update={"implementations": infos}))

    pair = [compiled(first), compiled(replace(second, environment=newer))]
    assert narrowest(compare(pair, intersection=True).cells) < 1.01 * BAND
