"""The scheduler with a mock executor: who is condemned, and what is run again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from nsabench.execution import schedule
from nsabench.execution.folder import RunFolder
from nsabench.execution.journal import Journal, read
from nsabench.execution.passes import first_look
from nsabench.execution.protocol import Measured
from nsabench.execution.supervisor.executor import GroupLost
from nsabench.model.case import Case
from nsabench.model.journal import Entry
from nsabench.model.measurement import Outcome
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Mode, Status
from tests.execution.supervisor.conftest import MakePlan

Lose = Callable[[list[str]], GroupLost | None]


class MockExecutor:
    """Answers `ok` for everybody, unless `lose` says that this group loses its worker."""

    def __init__(self, lose: Lose = lambda names: None) -> None:
        self.lose = lose
        self.asked: list[list[str]] = []

    def measure(self, case: Case, implementations: list[str], session: int) -> Measured:
        self.asked.append(list(implementations))
        lost = self.lose(implementations)
        if lost:
            raise lost
        return Measured(
            outcomes=[
                Outcome(implementation=n, status=Status.OK, session=session)
                for n in implementations
            ]
        )

    def log(self) -> str:
        return ""

    def close(self) -> None: ...


class Progress:
    def __init__(self, interrupt_at: int = 0) -> None:
        self.interrupt_at = interrupt_at

    def case_started(self, planned: PlannedCase, number: int, total: int) -> None:
        if number == self.interrupt_at:
            raise KeyboardInterrupt

    def case_finished(self, planned: PlannedCase, entry: Entry) -> None: ...

    def note(self, text: str) -> None: ...


def run(plan: Plan, executor: MockExecutor, folder: Path, progress: Progress | None = None) -> None:
    (folder / "logs").mkdir(exist_ok=True)
    with closing(Journal(folder / "journal.jsonl")) as journal:
        cells = first_look.cells(plan, dict)
        view = progress or Progress()
        schedule.run(first_look.PASS, cells, plan, executor, journal, RunFolder(folder), view)


def outcomes(folder: Path) -> dict[str, Outcome]:
    [entry] = read(folder / "journal.jsonl").entries
    return {o.implementation: o for o in entry.outcomes}


def crash(suspect: str, phase: str = "parity") -> GroupLost:
    return GroupLost(suspect, Status.CRASHED, "killed by SIGSEGV", "log", phase=phase)


def test_everybody_is_measured_together(make_plan: MakePlan, tmp_path: Path) -> None:
    executor = MockExecutor()
    run(make_plan(["a", "b", "c"]), executor, tmp_path)
    assert executor.asked == [["a", "b", "c"]]


def test_a_guilty_suspect_is_found_alone_and_the_others_run_together(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    executor = MockExecutor(lambda names: crash("b") if "b" in names else None)
    run(make_plan(["a", "b", "c"]), executor, tmp_path)
    assert executor.asked == [["a", "b", "c"], ["b"], ["a", "c"]]
    found = outcomes(tmp_path)
    assert found["b"].status == Status.CRASHED
    assert found["a"].session == found["c"].session


@pytest.mark.parametrize("slow_inputs", [False, True])
def test_who_hung_is_not_waited_for_as_long_again(
    make_plan: MakePlan, tmp_path: Path, slow_inputs: bool
) -> None:
    """Unless it was never called in that time, which is no fault of its own."""
    limits: list[float] = []

    class Limits(MockExecutor):
        def measure(self, case: Case, implementations: list[str], session: int) -> Measured:
            limits.append(case.timeout_s)
            if "b" in implementations and (len(implementations) > 1 or not slow_inputs):
                raise GroupLost("b", Status.TIMEOUT, f"{case.timeout_s:g} s", "", phase="parity")
            if slow_inputs and implementations == ["b"] and case.timeout_s < 3:
                raise GroupLost("", Status.TIMEOUT, "its inputs", "", phase="inputs")
            return super().measure(case, implementations, session)

    run(make_plan(["a", "b"]), Limits(), tmp_path)
    found = outcomes(tmp_path)
    assert found["a"].status is Status.OK
    if slow_inputs:
        assert found["b"].status is Status.OK and limits == pytest.approx([3, 0.45, 0.45, 3, 3])
    else:
        assert (found["b"].status, found["b"].reason) == (Status.TIMEOUT, "3 s")
        assert limits == pytest.approx([3, 0.45, 3])


def test_an_innocent_suspect_is_acquitted(make_plan: MakePlan, tmp_path: Path) -> None:
    """`a` corrupts memory and `b` is busy when the worker dies of it."""
    executor = MockExecutor(
        lambda names: crash("b" if "b" in names else "a") if "a" in names else None
    )
    run(make_plan(["a", "b"]), executor, tmp_path)
    found = outcomes(tmp_path)
    assert found["a"].status == Status.CRASHED
    assert found["b"].status == Status.OK


def test_a_deadly_combination_keeps_what_each_did_alone(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    executor = MockExecutor(lambda names: crash("") if len(names) > 1 else None)
    run(make_plan(["a", "b"]), executor, tmp_path)
    found = outcomes(tmp_path)
    assert [o.status for o in found.values()] == [Status.OK, Status.OK]
    assert found["a"].session != found["b"].session
    assert "measured alone" in found["a"].notes[0]


def test_naming_a_baseline_as_the_culprit_does_not_condemn_it(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    """`a` ends its worker each time and says that `best` did it."""
    executor = MockExecutor(lambda names: crash("best") if "a" in names else None)
    run(make_plan(["a", "best", "c"]), executor, tmp_path)
    found = outcomes(tmp_path)
    assert {name: o.status for name, o in found.items()} == {
        "a": Status.CRASHED,
        "best": Status.OK,
        "c": Status.OK,
    }


def test_what_an_earlier_case_left_in_the_worker_condemns_nobody(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    """A thread of the case before strikes while the oracle is computed; a fresh worker has none."""
    struck: list[bool] = []

    def strikes_once(names: list[str]) -> GroupLost | None:
        struck.append(True)
        return None if struck[1:] else crash("", phase="inputs")

    executor = MockExecutor(strikes_once)
    run(make_plan(["a", "b"]), executor, tmp_path)
    assert executor.asked == [["a", "b"]] * 2
    found = outcomes(tmp_path)
    assert [o.status for o in found.values()] == [Status.OK, Status.OK]
    assert found["a"].notes == ["measured again, since before any call: killed by SIGSEGV"]


def test_a_case_whose_inputs_always_end_the_worker_is_given_up(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    executor = MockExecutor(lambda names: crash("", phase="inputs"))
    run(make_plan(["a", "b"]), executor, tmp_path)
    assert executor.asked == [["a", "b"]] * 2
    assert [o.status for o in outcomes(tmp_path).values()] == [Status.CRASHED] * 2


def test_naming_somebody_else_as_the_culprit_does_not_loop(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    executor = MockExecutor(lambda names: crash("nobody"))
    run(make_plan(["a", "b"]), executor, tmp_path)
    assert [o.status for o in outcomes(tmp_path).values()] == [Status.CRASHED] * 2


@pytest.mark.parametrize("stop_at", [1, 2, 3])
def test_an_interrupted_run_goes_on_where_it_was(
    make_plan: MakePlan, tmp_path: Path, stop_at: int
) -> None:
    plan = make_plan(["a"], lengths=[8, 16, 24])
    first, second = MockExecutor(), MockExecutor()
    with pytest.raises(KeyboardInterrupt):
        run(plan, first, tmp_path, Progress(interrupt_at=stop_at))
    run(plan, second, tmp_path)
    assert len(first.asked) + len(second.asked) == 3
    done = [entry.case_id for entry in read(tmp_path / "journal.jsonl").entries]
    assert done == [planned.id for planned in plan.cases]


def test_what_cannot_run_here_is_skipped_with_the_reason(
    make_plan: MakePlan, tmp_path: Path
) -> None:
    plan = make_plan(["a"])
    only_cuda = plan.implementations[0].model_copy(update={"devices": ("cuda",)})
    plan = plan.model_copy(update={"implementations": [only_cuda]})
    executor = MockExecutor()
    run(plan, executor, tmp_path)
    assert executor.asked == []
    assert outcomes(tmp_path)["a"].reason == "runs only on cuda; this run is on the CPU"


def test_without_a_gpu_there_are_no_graphs_to_replay(make_plan: MakePlan, tmp_path: Path) -> None:
    plan = make_plan(["a"])
    content = plan.cases[0].case.model_dump()
    content["timing"]["mode"] = Mode.GRAPH
    case = Case(**content)
    planned = PlannedCase(id=case.id, case=case, implementations=("a",))
    executor = MockExecutor()
    run(plan.model_copy(update={"cases": [planned]}), executor, tmp_path)
    assert executor.asked == []
    assert outcomes(tmp_path)["a"].reason == "CUDA graphs exist only on CUDA devices"
