"""What shards on one host do to each other: when each measures, and what is said."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from select import select
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from nsabench.assessment.neighbours import findings
from nsabench.assessment.tables import read_records
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.evidence.manifest import seal, verify
from nsabench.execution import run as run_module
from nsabench.execution.journal import Journal
from nsabench.execution.neighbours import BEGIN, GO_ON, VARIABLE, Neighbours, _keeps_busy
from nsabench.execution.passes import PASSES
from nsabench.execution.passes.canary import PASS as CANARY
from nsabench.execution.passes.contract import Pass
from nsabench.execution.passes.neighbours import ALONE, TOGETHER
from nsabench.execution.passes.second_look import PASS as SECOND_LOOK
from nsabench.execution.run import _Run
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.fleet.meeting import Meeting
from nsabench.fleet.merge import merge
from nsabench.model.case import Case
from nsabench.model.journal import Contents, Entry
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName, Status, Verdict
from nsabench.signing import Signer
from tests.runs import Made, make_plan, make_run, timed

FAST = Made(ratio=lambda _: 2.0)
SHARD = replace(FAST, shard="1/2", neighbours=1)


class Member(threading.Thread):
    """A shard that says when it measured, or that ends instead."""

    def __init__(self, meeting: Meeting, name: str, said: list[tuple[str, str]], gone: str) -> None:
        super().__init__(daemon=True)
        [theirs] = meeting.descriptors(name)
        line = os.dup(theirs)
        os.environ[VARIABLE] = f"{line}:1"
        self.neighbours = Neighbours.handed()
        self.name, self.said, self.gone = name, said, gone
        self.refused = ""

    def _do(self, what: str) -> Callable[[], None]:
        def measure() -> None:
            self.said.append((self.name, f"{what} begins"))
            time.sleep(0.05 if self.name == "a" else 0.2)
            self.said.append((self.name, f"{what} ends"))

        return measure

    def _busy(self) -> bool:
        self._do("busy")()
        return True

    def run(self) -> None:
        try:
            self.neighbours.alone(self._do("alone"))
            if self.gone == self.name:
                self.neighbours._line.close()  # type: ignore[union-attr]
                return
            self.neighbours.together(self._do("together"), self._busy)
            self.said.append((self.name, "goes on"))
        except EnvironmentRefused as refused:
            self.refused = str(refused)


def met(gone: str = "") -> tuple[Meeting, list[Member], list[tuple[str, str]]]:
    said: list[tuple[str, str]] = []
    meeting = Meeting(["a", "b"], lambda *line: said.append(line))
    members = [Member(meeting, name, said, gone) for name in ("a", "b")]
    meeting.begin()
    for member in members:
        member.start()
    for member in members:
        member.join(20)
        assert not member.is_alive()
    meeting.end()
    return meeting, members, said


def test_each_is_alone_once_and_none_goes_on_before_all_have_measured_together() -> None:
    meeting, _, said = met()
    assert meeting.left == "" and VARIABLE not in os.environ
    assert said[:4] == [
        *(("a", "alone begins"), ("a", "alone ends")),
        *(("b", "alone begins"), ("b", "alone ends")),
    ]
    # The faster one keeps its device busy until the slower one has measured, too.
    assert ("a", "busy begins") in said
    slower = said.index(("b", "together ends"))
    assert said.index(("a", "together ends")) < slower < said.index(("a", "goes on"))


def test_who_was_alone_before_waits_until_the_others_have_been() -> None:
    """It goes on to compile, which would not be nothing beside them."""
    said: list[tuple[str, str]] = []
    meeting = Meeting(["a", "b"], lambda *line: said.append(line), patience_s=20)
    a, b = (Member(meeting, name, said, "") for name in ("a", "b"))
    meeting.begin()
    b.start()

    def resumed() -> None:
        a.neighbours.alone(None)
        said.append(("a", "compiles"))
        a.neighbours.together(a._do("together"), a._busy)

    again = threading.Thread(target=resumed)
    again.start()
    for thread in (again, b):
        thread.join(20)
    meeting.end()
    assert meeting.left == ""
    assert said.index(("b", "alone ends")) < said.index(("a", "compiles"))


def test_where_one_ends_the_others_end_too() -> None:
    meeting, [a, b], said = met(gone="b")
    assert meeting.left == "b" and b.refused == ""
    assert "a shard beside this one ended" in a.refused
    assert not any(what == "goes on" for _, what in said)


def test_one_that_says_nothing_is_named_and_not_waited_for_without_limit() -> None:
    said: list[tuple[str, str]] = []
    meeting = Meeting(["a", "b"], lambda *line: said.append(line), patience_s=0.2)
    a, b = (Member(meeting, name, [], "") for name in ("a", "b"))
    meeting.begin()
    a.start()
    a.join(20)
    meeting.end()
    assert meeting.left == "b" and "a shard beside this one ended" in a.refused
    [(name, sentence)] = said
    assert name == "b" and "the other shards wait no longer for this one" in sentence
    b.start()
    b.join(20)
    assert "a shard beside this one ended" in b.refused


def test_a_shard_waits_with_a_limit() -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs, pytest.raises(EnvironmentRefused, match="were waited for"):
        Neighbours(1, ours, patience_s=0.01).alone(None)


def test_a_device_that_cannot_be_kept_busy_is_not_tried_again_and_again() -> None:
    tried: list[int] = []
    asked: list[list[str]] = []

    class Lost:
        def measure(self, case: Case, names: list[str], session: int) -> None:
            tried.append(session)
            asked.append(names)
            raise GroupLost("mine", Status.CRASHED, "it crashed", "")

    busy = _keeps_busy(TOGETHER, make_plan(SHARD), cast("WorkerExecutor", Lost()))
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        theirs.send(BEGIN)
        told = threading.Timer(0.3, theirs.send, [GO_ON])
        told.start()
        Neighbours(1, ours).together(None, busy)
        told.join()
    assert len(set(tried)) == len(tried) == 3
    # What it has called before: else it would compile, and its device be idle.
    assert asked == 3 * list(TOGETHER.cells(make_plan(SHARD), dict).values())


def looked(run: SimpleNamespace, *passes: Pass) -> None:
    """Go through passes of a run that has nothing but what they ask of it."""
    for one in passes:
        _Run._look(cast("_Run", run), one)


def test_a_shard_whose_plan_has_no_such_pass_keeps_nobody_waiting() -> None:
    """As an earlier version planned it."""
    said: list[tuple[str, str]] = []
    meeting = Meeting(["a", "b"], lambda *line: said.append(line), patience_s=5)
    a, b = (Member(meeting, name, said, "") for name in ("a", "b"))
    measured: list[str] = []

    class Executor:
        def measure(self, case: Case, names: list[str], session: int) -> None:
            measured.append(case.op)
            time.sleep(0.01)

    old = SimpleNamespace(
        plan=make_plan(replace(SHARD, neighbours=0)),
        journal=SimpleNamespace(done=lambda *pass_: set(), contents=Contents([], [])),
        neighbours=b.neighbours,
        _ready=lambda pass_, cells: nullcontext(Executor()),
        _started=ExitStack(),
        view=SimpleNamespace(note=None),
        _measure=None,
    )
    meeting.begin()
    a.start()
    looked(old, ALONE, TOGETHER)
    a.join(20)
    meeting.end()
    assert said[-1] == ("a", "goes on") and measured and meeting.left == ""


def test_before_neighbours_wait_for_each_other_all_have_compiled() -> None:
    plan = make_plan(SHARD)
    assert plan.canary is not None
    canary, first = plan.canary.id, {planned.id for planned in plan.cases}
    done: dict[PassName, set[str]] = {}
    journal = SimpleNamespace(done=lambda name, rival: done.get(name, set()))
    run = _Run.__new__(_Run)
    run.plan, run.journal = plan, cast("Journal", journal)

    def compiled_before(pass_: Pass) -> set[str]:
        return set(run._compiled_before(pass_, pass_.cells(plan, dict)))

    assert compiled_before(ALONE) == compiled_before(TOGETHER) == {canary} | first
    assert compiled_before(CANARY) == {canary}
    left = min(first - {canary})
    done = {PassName.ALONE: {canary}, PassName.FIRST_LOOK: first - {left}}
    assert compiled_before(ALONE) == {left, canary}
    done[PassName.CANARY] = {canary}
    assert compiled_before(ALONE) == {left}


def test_of_the_canary_all_is_compiled_ahead() -> None:
    """The neighbours' passes have a part of it, and come first."""
    plan = make_plan(SHARD)
    assert plan.canary is not None
    run = _Run.__new__(_Run)
    run.plan, run.journal = plan, cast("Journal", SimpleNamespace(done=lambda *pass_: set()))
    left = run._compiled_before(ALONE, ALONE.cells(plan, dict))
    assert "mine" not in ALONE.cells(plan, dict)[plan.canary.id]
    assert set(left[plan.canary.id]) >= set(plan.canary.implementations)


def test_a_shard_has_compiled_and_has_a_worker_before_it_says_that_it_has_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plan = make_plan(SHARD)
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    did: list[str] = []

    def does(what: str) -> Callable[..., SimpleNamespace]:
        def do(*_: object) -> SimpleNamespace:
            if what != "measures":
                assert not select([theirs], [], [], 0)[0], f"it has come and {what}"
            did.append(what)
            return SimpleNamespace(sandbox="")

        return do

    monkeypatch.setattr(run_module, "described_as_before", does("is described"))
    device = SimpleNamespace(memory_bytes=None)
    header = SimpleNamespace(described=SimpleNamespace(device=device))
    run = SimpleNamespace(
        plan=plan,
        folder=SimpleNamespace(path=None),
        journal=SimpleNamespace(contents=SimpleNamespace(headers=[header])),
        view=SimpleNamespace(note=None),
        _ahead=SimpleNamespace(compile=does("compiles"), lend=does("is lent")),
        _is_open=True,
        _compiled_before=lambda *_: {},
        _sit=lambda _: None,
        _step=print,
        _executor=None,
        _started=ExitStack(),
    )
    run._prepare = partial(_Run._prepare, cast("_Run", run))
    started = SimpleNamespace(close=lambda: None)
    pass_ = replace(ALONE, start=lambda plan, folder: cast("WorkerExecutor", started))
    with ours, theirs:
        for message in (BEGIN, GO_ON):
            theirs.send(message)
        executor = _Run._ready(cast("_Run", run), pass_, {})
        Neighbours(1, ours).meet(pass_, plan, executor, does("measures"))
    assert did == ["is described", "compiles", "is lent", "is described", "measures"]


def test_the_first_look_goes_on_with_the_worker_that_measured_beside_the_neighbours() -> None:
    """It has imported all that there is. Beside the neighbours all begin anew: of one that imports
    while the others measure nobody would see what it does to them."""
    did: list[str] = []

    class Executor:
        def __init__(self, name: str) -> None:
            did.append(f"{name} starts")
            self.close = partial(did.append, f"that of {name} is closed")

    def meet(
        pass_: Pass, plan: object, executor: AbstractContextManager[object], _: object
    ) -> None:
        with executor:
            did.append(pass_.name)

    run = SimpleNamespace(
        plan=make_plan(SHARD),
        folder=SimpleNamespace(path=None),
        journal=SimpleNamespace(done=lambda *pass_: set(), contents=Contents([], [])),
        neighbours=SimpleNamespace(can_be_asked=True, meet=meet),
        view=SimpleNamespace(note=lambda _: None),
        _executor=None,
        _started=ExitStack(),
        _prepare=lambda *_: None,
        _measure=lambda pass_, cells, executor: did.append(pass_.name),
        _step=print,
    )
    run._ready = partial(_Run._ready, cast("_Run", run))

    def named(pass_: Pass) -> Pass:
        start = cast("Callable[..., WorkerExecutor]", lambda *_: Executor(pass_.name))
        return replace(pass_, start=start, cells=lambda *_: {"a": ["b"]})

    passes = [named(pass_) for pass_ in PASSES[: PASSES.index(SECOND_LOOK) + 1]]
    looked(run, *passes)
    assert did == [
        *("alone starts", "alone", "that of alone is closed"),
        *("together starts", "together", "first_look", "that of together is closed"),
        *("second_look starts", "second_look"),
    ]


def test_what_neighbours_do_is_asked_of_the_baselines() -> None:
    """What a candidate takes says nothing of it, and one after another all shards wait."""
    plan = make_plan(SHARD)
    assert plan.canary is not None
    baselines = [name for name in plan.canary.implementations if name != "mine"]
    assert "mine" in plan.canary.implementations
    for pass_ in (ALONE, TOGETHER):
        assert pass_.cells(plan, dict) == {plan.canary.id: baselines}
    assert CANARY.cells(plan, dict) == {plan.canary.id: list(plan.canary.implementations)}


@pytest.fixture(scope="module")
def signer() -> Signer:
    return Signer(Ed25519PrivateKey.generate(), ephemeral=False)


def shard(folder: Path, signer: Signer, index: int, made: Made) -> Path:
    own = replace(made, shard=f"{index}/2", run_id=f"shard-{index}", seed=index, neighbours=1)
    run = make_run(folder / f"s{index}", own, signer=signer)
    seal(run, signer)
    return run


@pytest.mark.parametrize(
    ("slowed", "over"),
    [
        ({"mine"}, ""),
        ({"mine", "flex_attention"}, ""),
        ({"sdpa_gqa", "flex_attention"}, "3% apart"),
    ],
)
def test_one_pair_of_medians_that_differ_voids_no_shard(slowed: set[str], over: str) -> None:
    """Where several baselines are timed; and a candidate says nothing. A run says it at once."""
    made = replace(SHARD, flex_ms=lambda _: 0.3)
    plan = make_plan(made)
    assert plan.canary is not None
    entries = [
        Entry(
            pass_name=name,
            case_id=plan.canary.id,
            outcomes=[
                timed(
                    n, 0.2 * (1.05 if busy and n in slowed else 1), made, np.random.default_rng(0)
                )
                for n in plan.canary.implementations
            ],
        )
        for busy, name in enumerate((PassName.ALONE, PassName.TOGETHER))
    ]
    contents = Contents([], entries)
    assert [over in finding.sentence for finding in findings(plan, contents)] == [True] * bool(over)
    notes: list[str] = []
    run = SimpleNamespace(
        plan=plan,
        journal=SimpleNamespace(done=lambda *pass_: {plan.canary.id}, contents=contents),
        neighbours=SimpleNamespace(can_be_asked=True, meet=lambda *_: None),
        view=SimpleNamespace(note=notes.append),
        _ready=lambda pass_, cells: None,
        _started=ExitStack(),
    )
    looked(run, ALONE, TOGETHER)
    assert len(notes) == bool(over)
    assert all("3% apart: its verdicts will be inconclusive" in note for note in notes)


@pytest.mark.parametrize(
    ("together_ms", "sentence"),
    [
        (0.2 * 1.02, ""),
        (0.2 * 1.05, "ms beside a busy neighbour: over 3% apart"),
        (None, "what its neighbours do to this device was not measured"),
    ],
)
def test_a_device_that_its_neighbour_slows_decides_nothing(
    tmp_path: Path, signer: Signer, together_ms: float | None, sentence: str
) -> None:
    """By its own run, and by the merged one, which has nothing but the journal to go by."""
    fine = shard(tmp_path, signer, 1, replace(FAST, together_ms=0.2))
    other = shard(tmp_path, signer, 2, replace(FAST, together_ms=together_ms))
    expected = Verdict.INCONCLUSIVE if sentence else Verdict.FASTER
    told: list[str] = []
    out = tmp_path / "whole"
    merge([fine, other], out, signer, note=told.append)
    assert verify(out).broken is None
    own = {case.id for case in Plan.read(other / "plan.yaml").cases}
    for folder in (other, out):
        judged = [r for r in read_records(folder) if r.verdict is not None]
        assert {r.verdict for r in judged if r.case_id in own} == {expected}
        assert {r.verdict for r in judged if r.case_id not in own} <= {Verdict.FASTER}
        assert all(sentence in r.reason for r in judged if r.case_id in own)
    said = [line for line in told if "shard 2/2" in line]
    assert len(said) == bool(sentence) and all(sentence in line for line in said)
    report = (out / "selection_report.md").read_text()
    assert ("shard 2/2" in report) == bool(sentence)


def test_a_shard_that_had_neighbours_and_one_that_had_none_are_no_one_run(
    tmp_path: Path, signer: Signer
) -> None:
    one = shard(tmp_path, signer, 1, replace(FAST, together_ms=0.2))
    lone = replace(FAST, shard="2/2", run_id="shard-2")
    two = make_run(tmp_path / "lone", lone, signer=signer)
    seal(two, signer)
    with pytest.raises(UsageError, match="the neighbours differ, 0 and 1"):
        merge([one, two], tmp_path / "whole", signer)
