"""Honest calls pass the look from outside, whatever the op; its referee never met the code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from nsabench import ops
from nsabench.execution.protocol import OF_A_REFEREE, Pose, Posed, Sandbox
from nsabench.execution.supervisor.examiner import Examiner, examines
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.process import Program, WorkerProcess, worker_environment
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Direction, DType, Role, Runs, Status
from tests.execution.supervisor.conftest import HOSTILE, MakePlan

SHIPPED = sorted(name for name in ops.shipped() if Direction.FORWARD in ops.get(name).directions)


@pytest.fixture(scope="module")
def executor() -> Iterator[WorkerExecutor]:
    with closing(WorkerExecutor("cpu")) as made:
        yield made


def baseline_of(executor: WorkerExecutor, op: str) -> ImplementationInfo:
    """One that runs here, as if it were a candidate."""
    known = executor.infos or {(i.op, i.name): i for i in executor.discover()}
    executor.infos = known
    info = next(
        i
        for (of, _), i in known.items()
        if of == op and i.role is Role.BASELINE and Runs.CPU in i.devices
    )
    return info.model_copy(update={"role": Role.CANDIDATE})


@pytest.mark.parametrize("op", SHIPPED)
def test_honest_calls_are_right_and_no_longer_than_they_say(
    executor: WorkerExecutor, op: str
) -> None:
    """The referee poses the inputs of every op, and gets back what is right."""
    info = baseline_of(executor, op)
    executor.infos = {**executor.infos, (op, info.name): info}
    shape = ops.get(op).check_shapes.get("cpu", ("",))[0]
    sizes = dict(part.split("=") for part in shape.split(",") if part)
    case = Case(
        op=op,
        shape=ops.get(op)
        .shape_model.model_validate({k: int(v) for k, v in sizes.items()})
        .model_dump(),
        dtype=DType.FLOAT32,
        direction=Direction.FORWARD,
        distribution=ops.get(op).distributions[0],
        streams=1,
        timeout_s=60,
        seed=1,
        timing=Timing(warmup_s=0.005, stopping=FixedCount(kind="fixed_count", rounds=3)),
    )
    [outcome] = executor.measure(case, [info.name], 1).outcomes
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.outside is not None and not outcome.outside.reason, outcome.outside
    assert outcome.outside.calls >= 1 and outcome.outside.time_ms > 0


def test_without_a_referee_nothing_is_decided_and_nobody_is_wrong(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        Examiner,
        "_program",
        lambda self: Program(
            "nsabench.execution.no_such_module", [], worker_environment("cpu"), OF_A_REFEREE
        ),
    )
    plan = make_plan(["well_behaved", "sdpa_gqa"])
    made = WorkerExecutor("cpu", HOSTILE)
    made.infos = {(i.op, i.name): i for i in plan.implementations}
    with closing(made):
        mine, _ = made.measure(plan.cases[0].case, ["well_behaved", "sdpa_gqa"], 1).outcomes
    assert mine.status is Status.OK
    assert mine.outside is not None and "the referee was lost" in mine.outside.reason


def test_the_referee_imports_no_implementation(tmp_path: Path, make_plan: MakePlan) -> None:
    """Neither the user's nor those that are installed: its memory holds the truth."""
    sandbox = Sandbox(scratch=str(tmp_path), hidden=[])
    options = ["--sandbox", sandbox.model_dump_json()]
    environment = worker_environment("cpu")
    program = Program("nsabench.execution.referee", options, environment, OF_A_REFEREE)
    referee = WorkerProcess(program)
    try:
        pose = Pose(
            case=make_plan(["x"]).cases[0].case, computes="", count=2, path=str(tmp_path / "in")
        )
        *_, posed = referee.ask(pose, 60)
        assert isinstance(posed, Posed) and len(posed.answers) == 2
        maps = Path(f"/proc/{referee.pid}/maps").read_text()
        assert "libtorch" in maps
    finally:
        referee.stop()
    source = Path("nsabench/execution/referee/__main__.py").read_text()
    assert "registry" not in source and "implementations" not in source


def test_what_cannot_be_looked_at_is_left(make_plan: MakePlan) -> None:
    case = make_plan(["x"]).cases[0].case
    assert examines("cpu", case)
    assert not examines("cuda", case)
    assert not examines("cpu", case.model_copy(update={"direction": Direction.BACKWARD}))
    assert not examines("cpu", case.model_copy(update={"streams": 2}))
