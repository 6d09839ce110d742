"""A candidate is never compared with a baseline that its matrix skips, even if that baseline is
measured."""

from __future__ import annotations

from pathlib import Path

from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Catch, Role
from nsabench.running.folder import RunFolder
from nsabench.verdicts.results import assemble
from nsabench.verdicts.tables import read_records
from tests.runs import Made, make_run

FAST = Made(flex_ms=lambda length: 0.01 * length / 64, lengths=(64, 128), shapes=((256, 4, 64),))


def in_the_first(plan: Plan) -> Plan:
    """flex_attention runs along, in one case for the control that wraps it."""
    first, *others = plan.cases
    alone = tuple(n for n in first.implementations if n != "flex_attention")
    infos = [
        i.model_copy(update={"wraps": "flex_attention"}) if i.role is Role.CONTROL else i
        for i in plan.implementations
    ]
    cases = [first.model_copy(update={"alongside": ("flex_attention",)})]
    cases += [p.model_copy(update={"implementations": alone}) for p in others]
    return plan.model_copy(update={"cases": cases, "implementations": infos})


def test_the_yardstick_is_the_same_in_all_cases(tmp_path: Path) -> None:
    """The one that runs along is 20 times as fast."""
    records = read_records(make_run(tmp_path / "run", FAST))
    assert {r.best_baseline for r in records if r.role is Role.CANDIDATE} == {"flex_attention"}
    run = make_run(tmp_path / "along", FAST, change=in_the_first)
    [part] = RunFolder(run).parts()
    results = assemble(part.plan.run_id, [part])
    candidates = [r for r in results.records if r.role is Role.CANDIDATE]
    assert {r.best_baseline for r in candidates} == {"sdpa_gqa"}
    assert {round(r.speedup or 0, 1) for r in candidates} == {0.5}
    [along] = [r for r in results.records if r.implementation == "flex_attention"]
    assert along.median_ms is not None and along.case_id == part.plan.cases[0].id
    assert all(c is not Catch.MISSED for c in (r.caught for r in results.records))


def test_what_is_timed_apart_is_what_a_candidate_is_held_to(tmp_path: Path) -> None:
    plan = in_the_first(Plan.read(make_run(tmp_path / "run", FAST) / "plan.json"))
    plan = plan.model_copy(update={"sources": {"y": "1"}})
    infos = [
        i.model_copy(update={"source": "x" if i.role is Role.CANDIDATE else "y"})
        for i in plan.implementations
    ]
    plan = plan.model_copy(update={"implementations": infos})
    assert plan.list_clean(plan.cases[0], Role.BASELINE) == ["sdpa_gqa"]
