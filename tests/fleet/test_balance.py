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
from nsabench.planning.cost import by_work, op_direction
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
    found = of_run(run).costs(cases)
    assert found.beginnings == {op_direction(cases[0].case): pytest.approx(9.0 + 2.0)}
    assert found.seconds == {
        case.id: pytest.approx(2 * estimated[case.id] + 2.0 * (case is cases[1])) for case in cases
    }
    without_first = of_run(run).costs(cases[1:])
    assert without_first.beginnings == {op_direction(cases[0].case): pytest.approx(2.0)}


def test_a_run_that_measured_nothing_balances_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "journal.jsonl").write_text("")
    with pytest.raises(UsageError, match="has measured nothing"):
        of_run(run)


def test_of_two_cases_nobody_learns_what_the_first_took_to_begin(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    cases = make_plan(Made()).cases[:3]
    (run / "journal.jsonl").unlink()
    journal = Journal(run / "journal.jsonl")
    for case, seconds in zip(cases, (100.0, 1.0, 1.0), strict=True):
        journal.append(first_look(case_id=case.id, wall_s=seconds))
    journal.close()
    found = of_run(run).costs(cases)
    assert found.beginnings == {}
    assert found.seconds[cases[0].id] == 100.0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_time_that_cannot_be_balances_nothing(tmp_path: Path, seconds: float) -> None:
    run = make_run(tmp_path / "run")
    case, *_ = make_plan(Made()).cases
    (run / "journal.jsonl").unlink()
    journal = Journal(run / "journal.jsonl")
    journal.append(first_look(case_id=case.id, wall_s=1.0))
    journal.close()
    text = (run / "journal.jsonl").read_text()
    assert text.count('"wall_s":1.0') == 1
    written = {"inf": "Infinity", "nan": "NaN"}.get(str(seconds), str(seconds))
    (run / "journal.jsonl").write_text(text.replace('"wall_s":1.0', f'"wall_s":{written}'))
    with pytest.raises(UsageError, match="says that a case took"):
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
