"""Shards that are balanced by the times of an earlier run."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from nsabench.cli._options import asked_again
from nsabench.errors import UsageError
from nsabench.execution.journal import Journal, read
from nsabench.fleet.balance import of_run, of_runs
from nsabench.model.journal import Entry, Line
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import PassName, Role
from nsabench.planning.cost import by_work, op_direction
from tests.fleet.test_devices import asked
from tests.runs import Made, first_look, make_plan, make_run, second_look


def journaled(run: Path, *lines: Line) -> Path:
    """The folder of a run that holds these lines in place of those that it was made with."""
    make_run(run, Made(run_id=run.name))
    (run / "journal.jsonl").unlink()
    with closing(Journal(run / "journal.jsonl")) as journal:
        for line in lines:
            journal.append(line)
    return run


def looks(*measured: tuple[PlannedCase, float]) -> list[Entry]:
    return [first_look(case_id=case.id, wall_s=seconds) for case, seconds in measured]


def test_a_case_costs_what_all_passes_took_for_it(tmp_path: Path) -> None:
    plan = make_plan(Made())
    first, second, *_ = plan.cases
    run = journaled(tmp_path / "run", *looks((first, 2.0), (second, 5.0), (first, 1.0)))
    balance = of_run(run)
    assert balance.run_ids == Plan.read(run / "plan.yaml").run_id
    assert balance.seconds == {first.id: 3.0, second.id: 5.0}


def test_a_case_that_the_run_did_not_have_is_estimated_in_proportion(tmp_path: Path) -> None:
    plan = make_plan(Made())
    known, unknown = plan.cases[0], plan.cases[1]
    run = journaled(tmp_path / "run", *looks((known, 100.0)))
    costs = of_run(run).costs([known, unknown]).seconds
    assert costs[known.id] == 100.0
    estimated = by_work([known, unknown]).seconds
    assert estimated[unknown.id] != estimated[known.id]
    of_known = estimated[unknown.id] / estimated[known.id]
    assert costs[unknown.id] == pytest.approx(100.0 * of_known)


def test_what_an_op_takes_to_begin_is_learnt(tmp_path: Path) -> None:
    """Its controls, and what the first case took over what is in proportion to the others. What
    measures the canary is no part of the plan's cases: every shard does."""
    plan = make_plan(Made())
    made = make_run(tmp_path / "made")
    outcomes = read(made / "journal.jsonl").entries[0].outcomes
    control = next(i.name for i in plan.implementations if i.role is Role.CONTROL)
    both = [next(o for o in outcomes if o.implementation == name) for name in ("mine", control)]
    cases = plan.cases[:5]
    proportional = {case_id: 2 * s for case_id, s in by_work(cases).seconds.items()}
    canary = (PassName.CANARY, PassName.ALONE, PassName.TOGETHER)
    run = journaled(
        tmp_path / "run",
        *looks(*((case, proportional[case.id] + 9 * (case is cases[0])) for case in cases)),
        second_look(case_id=cases[1].id, wall_s=4.0, outcomes=both),
        *(Entry(pass_name=name, case_id=cases[1].id, wall_s=100.0) for name in canary),
    )
    found = of_run(run).costs(cases)
    assert found.beginnings == {op_direction(cases[0].case): pytest.approx(9.0 + 2.0)}
    assert found.seconds == {
        case.id: pytest.approx(proportional[case.id] + 2.0 * (case is cases[1])) for case in cases
    }
    without_first = of_run(run).costs(cases[1:])
    assert without_first.beginnings == {op_direction(cases[0].case): pytest.approx(2.0)}


def began(tmp_path: Path, longer_s: float, *others: Line) -> Path:
    """A run of four cases in proportion to their work, but for the first, which took longer."""
    cases = make_plan(Made()).cases[:4]
    estimated = by_work(cases).seconds
    measured = ((c, estimated[c.id] + longer_s * (c is cases[0])) for c in cases)
    return journaled(tmp_path, *others, *looks(*measured))


def test_of_a_merged_run_each_of_its_runs_began_by_itself(tmp_path: Path) -> None:
    """Two shards of four cases, each of which took long for its first."""
    cases = make_plan(Made()).cases
    header = read(make_run(tmp_path / "made") / "journal.jsonl").headers[0]
    estimated = by_work(cases).seconds
    lines: list[Line] = []
    for number, own in enumerate((cases[:4], cases[4:8])):
        lines.append(header.model_copy(update={"run_id": f"run-{number}", "previous": ""}))
        lines += looks(*((c, estimated[c.id] + 9 * (c is own[0])) for c in own))
    found = of_run(journaled(tmp_path / "run", *lines)).costs(cases)
    assert found.beginnings == {op_direction(cases[0].case): pytest.approx(9.0)}
    assert found.seconds == {c.id: pytest.approx(estimated[c.id]) for c in cases}


def test_a_run_that_shows_no_beginning_leaves_what_another_showed(tmp_path: Path) -> None:
    first, *_ = cases = make_plan(Made()).cases[:4]
    shows = began(tmp_path / "shows", 9.0)
    nothing = journaled(tmp_path / "nothing", *looks((first, 1.0)))
    for runs in ((shows, nothing), (nothing, shows)):
        found = of_runs(runs).costs(cases)
        assert found.beginnings == {op_direction(first.case): pytest.approx(9.0)}


def test_a_case_that_hung_is_not_what_an_op_takes_to_begin(tmp_path: Path) -> None:
    *_, other = make_plan(Made()).cases
    hung = first_look(case_id=other.id, wall_s=600.0, reason="it hung")
    found = of_run(began(tmp_path / "run", 9.0, hung)).costs(make_plan(Made()).cases)
    assert found.beginnings == {op_direction(other.case): pytest.approx(9.0)}
    assert found.seconds[other.id] == 600.0


def test_a_run_that_measured_nothing_balances_nothing(tmp_path: Path) -> None:
    run = make_run(tmp_path / "run")
    (run / "journal.jsonl").write_text("")
    with pytest.raises(UsageError, match="has measured nothing"):
        of_run(run)


def test_of_two_cases_nobody_learns_what_the_first_took_to_begin(tmp_path: Path) -> None:
    cases = make_plan(Made()).cases[:3]
    run = journaled(tmp_path / "run", *looks(*zip(cases, (100.0, 1.0, 1.0), strict=True)))
    found = of_run(run).costs(cases)
    assert found.beginnings == {}
    assert found.seconds[cases[0].id] == 100.0


@pytest.mark.parametrize("seconds", [float("nan"), float("inf"), -1.0])
def test_a_time_that_cannot_be_balances_nothing(tmp_path: Path, seconds: float) -> None:
    case, *_ = make_plan(Made()).cases
    run = journaled(tmp_path / "run", *looks((case, 1.0)))
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
        journaled(tmp_path / name, *looks(*measured))
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
