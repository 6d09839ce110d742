"""One look at calls on inputs that only the referee knows, between two looks at our clock.

What a worker says of its time and its outputs is written in its own process, where foreign code can
do what it likes. Here nothing that it says counts: inputs come from the referee and are there only
when the clock runs, outputs are taken when it stops, with the process and its family, and a referee
that has never met the code says whether they are right.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any, Protocol, TypeVar

from pydantic import TypeAdapter

from nsabench import bounds
from nsabench.bounds.content import size
from nsabench.errors import NsabenchError
from nsabench.execution.protocol import (
    NEW_GRADIENTS,
    NEW_INPUTS,
    OF_A_REFEREE,
    Examine,
    Examined,
    Judge,
    Judged,
    Pose,
    Posed,
    Sheet,
    Step,
)
from nsabench.execution.supervisor.family import StillRuns
from nsabench.execution.supervisor.loss import WorkerLost
from nsabench.execution.supervisor.process import WorkerProcess
from nsabench.execution.supervisor.program import Program, worker_environment
from nsabench.execution.supervisor.scratch import Scratch
from nsabench.execution.supervisor.turnstile import Moves, Papers, Turnstile, move
from nsabench.model.case import Case
from nsabench.model.measurement import Message
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Direction, Status

MOST_ANSWER_BYTES = 1 << 30  # of outputs in one look
READ_BYTES = 16 << 20  # at a time
UNREADABLE = "its outputs cannot be read: "

R = TypeVar("R", bound=Message)
Answers = Sequence[Sequence[Sheet]]


class Examinee(Protocol):
    """Whoever calls; a worker that may be replaced."""

    def folder(self) -> str:
        """What it writes to."""
        ...

    def examine(self, request: Examine, at_step: Callable[[Step], None]) -> Examined:
        """at_step: told of each step before it is done."""
        ...

    def stopped(self) -> AbstractContextManager[None]:
        """Nothing of it runs meanwhile. Raises `StillRuns`."""
        ...


class Unseen(Exception):
    """Nothing was seen, and it is nobody's fault."""


class Fault(Exception):
    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


@dataclass(frozen=True)
class Look:
    """Times (ms) of one of so many calls. beside_ms: that of the yardstick on the same inputs, and
    beside_own_ms: what it takes by the clock of its process."""

    calls: int
    time_ms: float
    judged: Judged
    beside_ms: float | None = None
    beside_own_ms: float | None = None


@dataclass(frozen=True)
class Yardstick:
    """A baseline, in a process that imports no candidate."""

    by: Examinee
    implementation: str


class Looker:
    """Owns the referee, a process that is started when it is first needed."""

    def __init__(self, scratch: Scratch, ops_file: Path | None) -> None:
        self._scratch = scratch
        self._ops_file = ops_file
        self._referee: WorkerProcess | None = None

    def look(
        self,
        case: Case,
        info: ImplementationInfo,
        count: int,
        by: Examinee,
        yardstick: Yardstick | None = None,
        *,
        in_turn: bool = False,
    ) -> Look:
        """Have up to `count` calls made. in_turn: each set of inputs is there when the one before
        was answered. Raises `Unseen` or `Fault`."""
        private = Path(self._scratch.of_the_referee.scratch)
        posed_at, kept_at = Papers(private, "posed", count), Papers(private, "kept", count)
        judged_at = posed_at.outputs
        with _removed(*posed_at.all(), *kept_at.all()):
            pose = Pose(
                case=case,
                computes=info.computes,
                count=count,
                path=posed_at.inputs,
                gradient=posed_at.gradient,
            )
            posed = self._of_referee(pose, Posed, case.timeout_s)
            if posed.reason:
                raise Unseen(posed.reason)
            if posed.answer_bytes > MOST_ANSWER_BYTES:
                limit = size(MOST_ANSWER_BYTES)
                raise Unseen(f"its outputs would take more than {limit}")
            if yardstick is not None:
                with _room():
                    posed_at.copy(kept_at)
            calls, beside = len(posed.answers), None
            request = _request(case, info.name, posed, in_turn=in_turn)
            with _called(by, request, posed_at) as called:
                _taken(called.outputs, judged_at, posed.answer_bytes, called.bytes_taken)
                # While nothing of the examinee runs, it takes nothing from the yardstick.
                if yardstick is not None:
                    beside = _beside(yardstick, request, kept_at)
            judged = self._of_referee(Judge(path=str(judged_at)), Judged, case.timeout_s)
            if judged.reason:
                raise Fault(Status.WRONG, judged.reason)
        return Look(calls, called.took_s * 1e3 / calls, judged, *(beside or (None, None)))

    def _of_referee(self, request: Message, expected: type[R], limit_s: float) -> R:
        try:
            if self._referee is None:
                self._referee = WorkerProcess(self._program())
            for reply in self._referee.ask(request, limit_s):
                if isinstance(reply, expected):
                    return reply
                if not isinstance(reply, Step):
                    break
        except (WorkerLost, NsabenchError) as lost:
            self.close()
            raise Unseen(f"the referee was lost ({type(lost).__name__})") from lost
        self.close()
        raise Unseen("the referee answered something else")

    def _program(self) -> Program:
        options = ["--sandbox", self._scratch.of_the_referee.model_dump_json()]
        if self._ops_file is not None:
            options += ["--ops", str(self._ops_file)]
        replies: TypeAdapter[Any] = OF_A_REFEREE
        environment = worker_environment("cpu")
        return Program("nsabench.execution.referee", options, environment, replies)

    def close(self) -> None:
        referee, self._referee = self._referee, None
        if referee is not None:
            referee.stop()


def _request(case: Case, name: str, posed: Posed, *, in_turn: bool) -> Examine:
    """All but where the files will be."""
    return Examine(
        case=case,
        implementation=name,
        inputs="",
        questions=posed.questions,
        options=posed.options,
        outputs="",
        answers=posed.answers,
        gradients=posed.gradients,
        in_turn=in_turn,
    )


class _Clock:
    """Moves what was posed to where it is awaited, at the steps that await it, and reads the time
    then; each time the first time only."""

    def __init__(
        self, case: Case, posed: Papers, to: Papers, answers: Answers, *, in_turn: bool
    ) -> None:
        sets = [list(zip(posed.of(i), to.of(i), strict=True)) for i in range(len(answers))]
        self._before: Moves = []
        self._left = [NEW_INPUTS]
        if case.direction is Direction.BACKWARD:  # its forwards are not its time
            self._before = [of_set[0] for of_set in sets]
            self._left.append(NEW_GRADIENTS)
            sets = [of_set[1:] for of_set in sets]
        if not in_turn:
            sets = [[one for of_set in sets for one in of_set]]
        self._first = sets[0]
        with _handed_over():
            self.turnstile = Turnstile(to, sets, answers, posed.outputs)
        self.begun = time.monotonic()

    def at_step(self, step: Step) -> None:
        if not self._left or step.phase != self._left[0]:
            return
        self._left.pop(0)
        self.begun = time.monotonic()
        with _handed_over():
            move(self._before if self._left else self._first)
        if not self._left:
            self.turnstile.open()


@dataclass(frozen=True)
class _Called:
    """bytes_taken: of the outputs, from their beginning: they lie where the inputs were, as they
    were when the inputs of the next were handed over."""

    took_s: float
    outputs: Path
    bytes_taken: int
    examined: Examined


@contextmanager
def _called(by: Examinee, request: Examine, posed_at: Papers) -> Iterator[_Called]:
    """What came of the calls, while nothing of `by` runs."""
    awaited_at = Papers(Path(by.folder()), token_hex(8), len(request.answers))
    where = {
        "inputs": awaited_at.inputs,
        "gradient": awaited_at.gradient,
        "turns": awaited_at.turns,
        "outputs": str(awaited_at.outputs),
    }
    with _removed(*awaited_at.all()):
        clock = _Clock(
            *(request.case, posed_at, awaited_at, request.answers), in_turn=request.in_turn
        )
        turnstile = clock.turnstile
        with closing(turnstile):
            examined = by.examine(request.model_copy(update=where), clock.at_step)
            try:
                # What is not there when the clock stops was not timed.
                with by.stopped():
                    took_s = time.monotonic() - clock.begun
                    if examined.status is not Status.OK:
                        raise Fault(examined.status, examined.reason)
                    if turnstile.trouble:
                        raise Unseen(f"a copy of it cannot be written: {turnstile.trouble}")
                    if turnstile.fault:
                        raise Fault(Status.WRONG, UNREADABLE + turnstile.fault)
                    if turnstile.is_left:
                        raise Fault(Status.WRONG, "it returned before it had all of them")
                    if request.again:
                        took_s -= examined.besides_ms / 1e3
                    yield _Called(took_s, awaited_at.outputs, turnstile.bytes_taken, examined)
            except StillRuns as running:
                raise Unseen(f"it cannot be held up: {running}") from None


def _beside(yardstick: Yardstick, request: Examine, kept_at: Papers) -> tuple[float, float] | None:
    """Times (ms) of a call by our clock, and by its own; None where it failed."""
    asked = request.model_copy(update={"implementation": yardstick.implementation, "again": True})
    calls = len(request.answers)
    try:
        with _called(yardstick.by, asked, kept_at) as called:
            took_s, own_ms = called.took_s, called.examined.own_ms
    except (Fault, Unseen):
        return None
    return (took_s * 1e3 / calls, own_ms) if own_ms is not None else None


def _taken(outputs: Path, to: Path, size: int, there: int = 0) -> None:
    """Copy the outputs behind the first bytes, which are there already.

    Raises `Fault` when they are not there as they should be, and `Unseen` when the copy cannot be
    written.
    """
    with _room(), to.open("r+b" if there else "wb") as copy:
        copy.seek(there)
        for part in _parts(outputs, size, there):
            copy.write(part)


@contextmanager
def _room() -> Iterator[None]:
    """For what is our own. Raises `Unseen` when there is none."""
    try:
        yield
    except OSError as error:
        raise Unseen(f"a copy of it cannot be written: {error}") from None


@contextmanager
def _handed_over() -> Iterator[None]:
    """Raises `Fault` where something is in the way that the examinee alone can have put there."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE):
            raise Unseen(f"nothing can be handed over to it: {error}") from None
        raise Fault(Status.WRONG, f"nothing can be handed over to it: {error}") from None


def _parts(outputs: Path, size: int, begin: int = 0) -> Iterator[bytes]:
    """Those from `begin` on. Raises `Fault` when they are not there as they should be."""
    try:
        with bounds.opened(outputs, size, flags=os.O_NOFOLLOW) as file:
            file.seek(begin)
            while part := file.read(READ_BYTES):
                yield part
    except (OSError, bounds.OutOfBounds) as error:
        raise Fault(Status.WRONG, f"{UNREADABLE}{error}") from None


@contextmanager
def _removed(*paths: Path) -> Iterator[None]:
    """What is made there is gone afterwards."""
    try:
        yield
    finally:
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
