"""Shards that are balanced by the times of an earlier run."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from nsabench.cli._options import asked_again
from nsabench.errors import UsageError
from nsabench.execution.journal import Journal, read
from nsabench.fleet.balance import of_run, of_runs
from nsabench.model.journal import Entry
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName, Role
from nsabench.planning.cost import by_work, kind_of
from tests.fleet.test_devices import asked
from tests.runs import Made, first_look, make_plan, make_run, second_look


def test_a_case_costs_what_all_passes_took_for_it(tmp_path: Path) -> None:
    plan = make_plan(Made())
    first, second, *_ = plan.cases
    run = make_run(tmp_path / "run")
    (run / "journal.jsonl").unlink()
    journal = Journal(run / "journal.jsonl")
    for case, seconds in ((first, 2.0), (second, 5.0), (first, 1.0)):
        journal.append(first_look(case_id=case.id, wall_s=seconds))
    journal.close()
    balance = of_run(run)
    assert balance.run_ids == Plan.read(run / "plan.yaml").run_id
    assert balance.seconds == {first.id: 3.0, second.id: 5.0}


def test_a_case_that_the_run_did_not_have_is_estimated_in_proportion(tmp_path: Path) -> None:
    plan = make_plan(Made())
    known, unknown = plan.cases[0], plan.cases[1]
    run = make_run(tmp_path / "run")
    (run / "journal.jsonl").unlink()
    journal = Journal(run / "journal.jsonl")
    journal.append(first_look(case_id=known.id, wall_s=100.0))
    journal.close()
    costs = of_run(run).costs([known, unknown]).seconds
    assert costs[known.id] == 100.0
    estimated = by_work([known, unknown]).seconds
    assert estimated[unknown.id] != estimated[known.id]
    of_known = estimated[unknown.id] / estimated[known.id]
    assert costs[unknown.id] == pytest.approx(100.0 * of_known)


def test_what_a_kind_takes_to_begin_is_learnt(tmp_path: Path) -> None:
    """Its controls, and what the first case took over what is in proportion to the others. What
    measures the canary is no part of the plan's cases: every shard does."""
    run = make_run(tmp_path / "run")
    plan = make_plan(Made())
    outcomes = read(run / "journal.jsonl").entries[0].outcomes
    control = next(i.name for i in plan.implementations if i.role is Role.CONTROL)
    both = [next(o for o in outcomes if o.implementation == name) for name in ("mine", control)]
    cases = plan.cases[:5]
    estimated = by_work(cases).seconds
    (run / "journal.jsonl").unlink()
    journal = Journal(run / "journal.jsonl")
    journal.append(first_look(case_id=cases[0].id, wall_s=2 * estimated[cases[0].id] + 9))
    for case in cases[1:]:
        journal.append(first_look(case_id=case.id, wall_s=2 * estimated[case.id]))
    journal.append(second_look(case_id=cases[1].id, wall_s=4.0, outcomes=both))
    for name in (PassName.CANARY, PassName.ALONE, PassName.TOGETHER):
        journal.append(Entry(pass_name=name, case_id=cases[1].id, wall_s=100.0))
    journal.close()
    found = of_run(run)
    assert found.beginnings == {kind_of(cases[0].case): pytest.approx(9.0 + 2.0)}
    assert found.seconds == {
        case.id: pytest.approx(2 * estimated[case.id] + 2.0 * (case is cases[1])) for case in cases
    }
    assert found.costs(cases).beginnings == found.beginnings


def test_a_run_that_measured_nothing_balances_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "journal.jsonl").write_text("")
    with pytest.raises(UsageError, match="has measured nothing"):
        of_run(run)


def test_several_runs_balance_together(tmp_path: Path) -> None:
    plan = make_plan(Made())
    first, second, *_ = plan.cases
    for name, measured in (("a", [(first, 2.0), (second, 5.0)]), ("b", [(second, 7.0)])):
        run = make_run(tmp_path / name)
        (run / "journal.jsonl").unlink()
        journal = Journal(run / "journal.jsonl")
        for case, seconds in measured:
            journal.append(first_look(case_id=case.id, wall_s=seconds))
        journal.close()
    one = of_run(tmp_path / "a")
    both = of_runs([tmp_path / "a", tmp_path / "b"])
    assert both.seconds == {first.id: 2.0, second.id: 7.0}  # the last one's
    assert both.run_ids == f"{one.run_ids}, {of_run(tmp_path / 'b').run_ids}"
    none = of_runs([])
    assert (none.run_ids, none.costs(list(plan.cases))) == ("", by_work(list(plan.cases)))


def test_every_shard_is_told_all_the_runs(tmp_path: Path) -> None:
    runs = (tmp_path / "a", tmp_path / "b")
    words = asked_again(replace(asked(tmp_path / "m.yaml", tmp_path / "out"), balance=runs))
    given = [word for flag, word in pairwise(words) if flag == "--balance"]
    assert given == [str(run) for run in runs]
