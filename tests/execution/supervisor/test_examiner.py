"""Honest calls pass the look from outside, whatever the op; its referee never met the code."""

from __future__ import annotations

import time
import weakref
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsabench import ops
from nsabench.assessment.checks.outside import ON_NEW_INPUTS, is_no_faster, longest_ms
from nsabench.execution.protocol import OF_A_REFEREE, Judge, Judged, Measured, Pose, Posed, Sandbox
from nsabench.execution.referee import sheets
from nsabench.execution.referee.__main__ import Referee
from nsabench.execution.supervisor import examiner, look
from nsabench.execution.supervisor.examiner import ON_CUDA, Examiner, Rival, examines
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.look import Examinee, Look, Looker, Yardstick
from nsabench.execution.supervisor.process import WorkerProcess
from nsabench.execution.supervisor.program import Program, worker_environment
from nsabench.model.case import Case, FixedCount, Timing
from nsabench.model.measurement import Conditions, Outcome, Samples
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Direction, DType, Role, Runs, Status
from tests.execution.supervisor.conftest import HOSTILE, MakePlan
from tests.ops.test_legal import SIZES

SHIPPED = [
    (name, direction) for name in sorted(ops.shipped()) for direction in ops.get(name).directions
]


@pytest.fixture(scope="module")
def executor() -> Iterator[WorkerExecutor]:
    with closing(WorkerExecutor("cpu")) as made:
        yield made


def baseline_of(executor: WorkerExecutor, op: str) -> ImplementationInfo:
    """One that runs here, as if it were a candidate."""
    known = {(i.op, i.name): i for i in executor.discover()}
    executor.infos = known
    info = next(
        i
        for (of, _), i in known.items()
        if of == op and i.role is Role.BASELINE and Runs.CPU in i.devices
    )
    return info.model_copy(update={"role": Role.CANDIDATE})


@pytest.mark.parametrize(("op", "direction"), SHIPPED)
def test_honest_calls_are_right_and_no_longer_than_they_say(
    executor: WorkerExecutor, op: str, direction: Direction
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
        direction=direction,
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
        Looker,
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


def test_what_cannot_be_looked_at_is_left(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = make_plan(["x"]).cases[0].case
    monkeypatch.delenv(ON_CUDA, raising=False)
    assert examines("cpu", case)
    assert not examines("cuda", case)
    assert examines("cpu", case.model_copy(update={"direction": Direction.BACKWARD}))
    assert not examines("cpu", case.model_copy(update={"streams": 2}))
    monkeypatch.setenv(ON_CUDA, "1")
    assert examines("cuda", case)
    large = {**case.shape, "N": 1 << 20, "L": 1 << 10}
    assert not examines("cuda", case.model_copy(update={"shape": large}))
    assert not examines("cuda", case.model_copy(update={"streams": 2}))


DECEIVERS = Path(__file__).with_name("deceivers.py")
BLOCKS = {"B": 1, "T": 64, "HQ": 4, "H": 1, "D": 32, "Dv": 32, "S": 2, "block_size": 16}


def deceived(case: Case, name: str, baseline: str) -> Outcome:
    """What becomes of a kernel that would deceive, with a baseline beside it."""
    roles = {name: Role.CANDIDATE, baseline: Role.BASELINE}
    made = WorkerExecutor("cpu", DECEIVERS)
    made.infos = {
        (case.op, who): ImplementationInfo(
            op=case.op, name=who, role=role, devices=(Runs.CPU,), source=role
        )
        for who, role in roles.items()
    }
    with closing(made):
        mine, theirs = made.measure(case, [name, baseline], 1).outcomes
    assert theirs.status is Status.OK, theirs.reason
    return mine


def of_blocks(case: Case, direction: Direction) -> Case:
    shape = ops.get("selection_blocks").shape_model.model_validate(BLOCKS).model_dump()
    changes = {"op": "selection_blocks", "shape": shape, "direction": direction}
    distribution = ops.get("selection_blocks").distributions[0]
    return case.model_copy(update=changes | {"distribution": distribution, "timeout_s": 30})


def test_microseconds_that_are_half_a_millisecond_are_no_speedup(make_plan: MakePlan) -> None:
    """A look's own cost hides nothing: a baseline pays it, too."""
    case = make_plan(["x"]).cases[0].case
    mine = deceived(case, "of_microseconds", "sdpa_gqa")
    assert mine.status is Status.OK, mine.reason
    assert mine.samples.time_ms == [3e-3] * 12
    seen = mine.outside
    assert seen is not None and seen.baseline == "sdpa_gqa" and seen.baseline_ms is not None
    assert seen.time_ms > longest_ms(3e-3, seen) or is_no_faster(seen), seen


def test_what_is_computed_while_it_is_read_is_not_there(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that it started stands still when the clock stops, until its outputs are taken."""
    taken = look._taken

    def late(*given: Any) -> None:
        time.sleep(0.3)  # as outputs of gigabytes take
        taken(*given)

    monkeypatch.setattr(look, "_taken", late)
    case = make_plan(["x"]).cases[0].case
    mine = deceived(case, "answers_first", "sdpa_gqa")
    assert mine.status is Status.WRONG and ON_NEW_INPUTS in mine.reason


def test_settings_that_change_in_a_look_are_found(make_plan: MakePlan) -> None:
    mine = deceived(make_plan(["x"]).cases[0].case, "changes_settings", "sdpa_gqa")
    assert mine.status is Status.WRONG
    assert mine.reason.startswith(f"{ON_NEW_INPUTS}it changed settings of the process: num_threads")


def test_gradients_from_the_judges_memory_are_wrong(make_plan: MakePlan) -> None:
    case = of_blocks(make_plan(["x"]).cases[0].case, Direction.BACKWARD)
    mine = deceived(case, "recalls_gradients", "masked_sdpa")
    assert mine.status is Status.WRONG and mine.reason.startswith(ON_NEW_INPUTS), mine.reason


def test_a_backward_that_hides_its_time_is_seen(make_plan: MakePlan) -> None:
    case = of_blocks(make_plan(["x"]).cases[0].case, Direction.BACKWARD)
    mine = deceived(case, "slow_backward", "masked_sdpa")
    assert mine.status is Status.OK, mine.reason
    assert mine.samples.time_ms == [0.01] * 12
    seen = mine.outside
    assert seen is not None and seen.time_ms > longest_ms(0.01, seen) and is_no_faster(seen), seen


def test_outputs_that_are_too_many_are_not_seen_and_not_wrong(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "MOST_ANSWER_BYTES", 100)
    plan = make_plan(["well_behaved", "sdpa_gqa"])
    made = WorkerExecutor("cpu", HOSTILE)
    made.infos = {(i.op, i.name): i for i in plan.implementations}
    with closing(made):
        mine, _ = made.measure(plan.cases[0].case, ["well_behaved", "sdpa_gqa"], 1).outcomes
    assert mine.status is Status.OK
    assert mine.outside is not None and "take more than 100 bytes" in mine.outside.reason


def test_rows_that_rounding_decides_are_held_to_their_bounds(tmp_path: Path) -> None:
    """Whatever the judge of a worker says: noise in the rows that the oracle leaves out."""
    op = ops.get("nsa_attention")
    case = Case(
        op=op.name,
        shape=op.shape_model.model_validate(SIZES).model_dump(),
        dtype=DType.BFLOAT16,
        direction=Direction.FORWARD,
        distribution=op.distributions[0],
        streams=1,
        timeout_s=60,
        seed=1,
        timing=Timing(warmup_s=0.005, stopping=FixedCount(kind="fixed_count", rounds=3)),
    )
    referee = Referee()
    posed = referee.pose(Pose(case=case, computes="", count=1, path=str(tmp_path / "in")))
    [truth] = referee._truth.values()
    assert truth.legal is not None, "no row is left out; take another shape"
    [[sheet]] = posed.answers
    outputs = sheets.mapping(tmp_path / "out", posed.answer_bytes, new=True)
    output = sheets.tensor_of(outputs, sheet)
    right = truth.results["output"].where(truth.results["output"].isfinite(), 0.0)
    rows = right.reshape(-1, right.shape[-1]).clone()
    rows[truth.legal.rows] = (truth.legal.lo + truth.legal.hi) / 2
    output.copy_(rows.view_as(output))
    assert not referee.judge(Judge(path=str(tmp_path / "out"))).reason
    rows[truth.legal.rows] = 50.0
    output.copy_(rows.view_as(output))
    judged = referee.judge(Judge(path=str(tmp_path / "out")))
    assert judged.reason or (judged.worst_row or 0) > 1, judged


def looked_at(
    monkeypatch: pytest.MonkeyPatch,
    case: Case,
    beside: dict[str, list[float | None]],
    time_ms: float = 1.0,
    in_turn: tuple[float, float] = (1.0, 2.0),
) -> tuple[Outcome, list[str]]:
    """What becomes of a candidate that says 0.8 ms and takes `time_ms`, and whom it was held to.

    beside: of each baseline, the fastest first, its time look by look; None: it failed. in_turn:
    what both take where inputs come one set at a time.
    """
    asked = []
    mine_ms, its_ms = in_turn

    def seen(
        self: Looker,
        of: Case,
        info: Any,
        count: int,
        by: Any,
        rival: Yardstick,
        *,
        in_turn: bool,
    ) -> Look:
        if in_turn:
            asked.append("in turn")
            return Look(count, mine_ms, Judged(), its_ms, its_ms)
        asked.append(rival.implementation)
        found = beside[rival.implementation].pop(0)
        return Look(count, time_ms, Judged(), found, found)

    monkeypatch.setattr(Looker, "look", seen)
    monkeypatch.setattr(examiner, "PAUSE_S", 0.0)
    mine = Outcome(
        implementation="mine", status=Status.OK, samples=Samples(round=[0], time_ms=[0.8])
    )
    info = ImplementationInfo(
        op=case.op, name="mine", role=Role.CANDIDATE, devices=(Runs.CPU,), source="mine.py"
    )
    nobody: Any = None
    held_to = [Rival(name, 1.0 + place) for place, name in enumerate(beside)]
    examinee: Examinee = nobody
    Examiner(Looker(nobody, None), lambda: examinee).examine(
        case, [mine], {"mine": info}, examinee, held_to
    )
    return mine, asked


def test_a_baseline_that_fails_once_was_seen_before(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: dict[str, list[float | None]] = {"sdpa": [0.9, None, 1.0, None, 1.0], "slow": []}
    mine, asked = looked_at(monkeypatch, make_plan(["x"]).cases[0].case, beside)
    assert asked == ["sdpa"] * 5
    assert mine.outside is not None and mine.outside.baseline_ms == 0.9
    assert "it is no faster" in is_no_faster(mine.outside)


def test_where_a_baseline_fails_the_next_is_asked(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: dict[str, list[float | None]] = {"sdpa": [None], "slow": [2.0]}
    mine, asked = looked_at(monkeypatch, make_plan(["x"]).cases[0].case, beside)
    assert asked == ["sdpa", "slow", "in turn"]
    assert mine.outside is not None and mine.outside.baseline == "slow"
    assert not is_no_faster(mine.outside)


def test_who_is_faster_only_with_all_inputs_at_once_is_no_faster(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever computes all of them in one call; it is looked at as often as others are."""
    beside: dict[str, list[float | None]] = {"sdpa": [2.0]}
    case = make_plan(["x"]).cases[0].case
    mine, asked = looked_at(monkeypatch, case, beside, in_turn=(2.0, 2.02))
    assert asked == ["sdpa", *["in turn"] * 5]
    assert mine.outside is not None and mine.outside.time_ms == 1.0
    assert "one at a time, and one of sdpa 2.02 ms" in is_no_faster(mine.outside)


def test_who_is_not_faster_is_not_looked_at_in_turn(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    beside: dict[str, list[float | None]] = {"sdpa": [1.0] * 5}
    _, asked = looked_at(monkeypatch, make_plan(["x"]).cases[0].case, beside)
    assert asked == ["sdpa"] * 5


def test_nobody_is_faster_than_a_baseline_of_which_nothing_was_seen(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    failing: list[float | None] = [None] * 5
    beside = dict.fromkeys("abcdef", failing)
    mine, asked = looked_at(monkeypatch, make_plan(["x"]).cases[0].case, beside)
    assert asked == list("abcde")
    assert mine.outside is not None and "is not known" in is_no_faster(mine.outside)


def test_who_is_held_to_what_a_clean_process_has(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A baseline of the candidate's own file is not there, however fast it says to be."""
    case = make_plan(["x"]).cases[0].case
    made = WorkerExecutor("cpu", HOSTILE)
    sources = {"mine": "mine.py", "theirs": "mine.py", "sdpa": "nsabench"}
    made.infos = {
        (case.op, who): ImplementationInfo(
            op=case.op,
            name=who,
            role=Role.CANDIDATE if who == "mine" else Role.BASELINE,
            devices=(Runs.CPU,),
            source=source,
        )
        for who, source in sources.items()
    }
    found: list[str] = []
    monkeypatch.setattr(
        Examiner,
        "examine",
        lambda self, case, outcomes, infos, by, rivals: found.extend(r.name for r in rivals),
    )
    times = {"mine": 0.5, "theirs": 0.1, "sdpa": 1.0}
    outcomes = [
        Outcome(implementation=who, status=Status.OK, samples=Samples(round=[0], time_ms=[ms]))
        for who, ms in times.items()
    ]
    with closing(made):
        made._examine(case, Measured(outcomes=outcomes, conditions=Conditions(), measuring_s=0.0))
        assert found == ["sdpa"]
        made.apart = WorkerExecutor("cpu", sources={"nsabench": "digest"})
        made._examine(case, Measured(outcomes=outcomes, conditions=Conditions(), measuring_s=0.0))
    assert found == ["sdpa"] * 2


def test_the_referee_keeps_no_inputs(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """It holds the truth about them until it is asked again, which may be long."""
    drawn: list[weakref.ref[Any]] = []
    write = sheets.write

    def seen(path: Path, sets: Any) -> Any:
        drawn.extend(weakref.ref(one) for tensors in sets for one in tensors.values())
        return write(path, sets)

    monkeypatch.setattr(sheets, "write", seen)
    referee = Referee()
    case = make_plan(["x"]).cases[0].case
    posed = referee.pose(Pose(case=case, computes="", count=2, path=str(tmp_path / "in")))
    assert not posed.reason and len(drawn) == 6
    assert [one() for one in drawn] == [None] * 6
    assert referee._truth
