"""Calls on inputs that only the referee knows, between two looks at the supervisor's own clock.

What a worker says of its time and its outputs is written in its own process, where foreign code can
do what it likes. Here nothing that it says counts: inputs come from the referee and are there only
when the clock runs, outputs are taken when it stops, and a referee that has never met the code says
whether they are right.

On the CPU, for a forward that is called alone. On a GPU this would need inputs and outputs to pass
through memory of the device that both processes map; `examines` is where that would begin.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from secrets import token_hex
from typing import Any, TypeVar

from pydantic import TypeAdapter

from nsabench import bounds, ops
from nsabench.assessment.checks.outside import ON_NEW_INPUTS, longest_ms
from nsabench.assessment.statistics import quantile
from nsabench.errors import NsabenchError
from nsabench.execution.protocol import (
    OF_A_REFEREE,
    Examine,
    Examined,
    Judge,
    Judged,
    Pose,
    Posed,
    Step,
)
from nsabench.execution.supervisor.loss import WorkerLost
from nsabench.execution.supervisor.process import Program, WorkerProcess, worker_environment
from nsabench.execution.supervisor.scratch import Scratch
from nsabench.model.case import Case
from nsabench.model.measurement import Bursts, Message, Outcome, Outside, Samples
from nsabench.model.plan import Device, ImplementationInfo
from nsabench.model.vocabulary import Direction, Mode, Role, Status

LOOK_MS = 20.0  # of calls in one look, by what they say they take
MOST_CALLS = 32
MOST_BYTES = 64 << 20  # of inputs in one look
LOOKS = 5  # as many, before a time is doubted
PAUSE_S = 0.05  # between looks: what held the machine up may be over

Ask = Callable[[Examine], Examined]
R = TypeVar("R", bound=Message)


def examines(device: Device, case: Case) -> bool:
    """Whether calls of this kind can be looked at from outside."""
    alone = case.streams == 1 and case.timing.mode is Mode.STREAM
    return device == "cpu" and alone and case.direction is Direction.FORWARD


def found_out(outcome: Outcome) -> bool:
    """Whether it was wrong where only the referee knew what is right."""
    return outcome.reason.startswith(ON_NEW_INPUTS)


class Examiner:
    """Owns the referee, a process that is started when it is first needed."""

    def __init__(self, scratch: Scratch, ops_file: Path | None) -> None:
        self._scratch = scratch
        self._ops_file = ops_file
        self._referee: WorkerProcess | None = None

    def examine(
        self,
        case: Case,
        outcomes: list[Outcome],
        infos: dict[str, ImplementationInfo],
        ask: Ask,
    ) -> None:
        """Look at the candidates among `outcomes`: what was seen, or that they are wrong, is put
        there. ask: hands a request to the worker."""
        for outcome in outcomes:
            info = infos.get(outcome.implementation)
            if info is None or info.role is not Role.CANDIDATE or outcome.status is not Status.OK:
                continue
            claim = _claim_ms(outcome)
            seen, fault = self._least(case, info, outcome, LOOKS, ask)
            outcome.outside = seen
            if fault is not None:
                _condemn(outcome, *fault)
            elif claim and not seen.reason and seen.time_ms > longest_ms(claim, seen.calls):
                self._compare(seen, case, outcomes, infos, ask)

    def _least(
        self,
        case: Case,
        info: ImplementationInfo,
        outcome: Outcome,
        looks: int,
        ask: Ask,
    ) -> tuple[Outside, tuple[Status, str] | None]:
        """The least time of several looks; one is enough where it agrees with the claim. And the
        status of one that failed, with the reason. The outcome is told how far it is off."""
        best, claim = Outside(), _claim_ms(outcome)
        for look in range(looks):
            if look:
                time.sleep(PAUSE_S)
            try:
                calls, time_ms, judged = self._look(case, info, claim, ask)
            except _Fault as fault:
                return best, (fault.status, fault.reason)
            except _Unseen as unseen:
                return Outside(reason=str(unseen)), None
            _tell(outcome, judged)
            if not best.calls or time_ms < best.time_ms:
                best = Outside(calls=calls, time_ms=time_ms)
            if claim is None or best.time_ms <= longest_ms(claim, best.calls):
                break
        return best, None

    def _compare(
        self,
        seen: Outside,
        case: Case,
        outcomes: list[Outcome],
        infos: dict[str, ImplementationInfo],
        ask: Ask,
    ) -> None:
        """How long the fastest baseline takes now, by our clock and by its own."""
        baselines = [
            (claim, o)
            for o in outcomes
            if o.implementation in infos
            and infos[o.implementation].role is Role.BASELINE
            and o.status is Status.OK
            and (claim := _claim_ms(o))
        ]
        if not baselines:
            return
        claim, fastest = min(baselines, key=lambda one: one[0])
        beside, fault = self._least(case, infos[fastest.implementation], fastest, LOOKS, ask)
        if fault is None and not beside.reason:
            seen.baseline_ms, seen.baseline_claim_ms = beside.time_ms, claim

    def _look(
        self, case: Case, info: ImplementationInfo, claim: float | None, ask: Ask
    ) -> tuple[int, float, Judged]:
        """How many calls were made, the time of one (ms), and how far they were off."""
        private = Path(self._scratch.of_the_referee.scratch)
        posed_at, judged_at = private / "inputs", private / "outputs"
        name = token_hex(8)
        inputs, outputs = (Path(self._scratch.path, f"{name}.{end}") for end in ("in", "out"))
        with _removed(posed_at, judged_at, inputs, outputs):
            pose = Pose(
                case=case, computes=info.computes, count=_count(case, claim), path=str(posed_at)
            )
            posed = self._of_referee(pose, Posed, case.timeout_s)
            if posed.reason:
                raise _Unseen(posed.reason)
            request = Examine(
                case=case,
                implementation=info.name,
                inputs=str(inputs),
                questions=posed.questions,
                options=posed.options,
                outputs=str(outputs),
                answers=posed.answers,
            )
            begun = time.monotonic()
            posed_at.rename(inputs)
            examined = ask(request)
            took_s = time.monotonic() - begun
            if examined.status is not Status.OK:
                raise _Fault(examined.status, examined.reason)
            # At once: what is not there when the clock stops was not timed.
            try:
                with bounds.opened(outputs, 2 * MOST_BYTES, flags=os.O_NOFOLLOW) as file:
                    judged_at.write_bytes(file.read())
            except (OSError, bounds.OutOfBounds) as error:
                raise _Fault(Status.WRONG, f"its outputs cannot be read: {error}") from None
            judged = self._of_referee(Judge(path=str(judged_at)), Judged, case.timeout_s)
            if judged.reason:
                raise _Fault(Status.WRONG, judged.reason)
        calls = len(posed.answers)
        return calls, took_s * 1e3 / calls, judged

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
            raise _Unseen(f"the referee was lost ({type(lost).__name__})") from lost
        self.close()
        raise _Unseen("the referee answered something else")

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


class _Unseen(Exception):
    """Nothing was seen, and it is nobody's fault."""


class _Fault(Exception):
    def __init__(self, status: Status, reason: str) -> None:
        super().__init__(reason)
        self.status = status
        self.reason = reason


def _condemn(outcome: Outcome, status: Status, reason: str) -> None:
    """One that failed where nobody could help it. It cannot decline what it has done before."""
    outcome.status = Status.WRONG if status is Status.UNSUPPORTED else status
    outcome.reason = ON_NEW_INPUTS + reason
    outcome.samples, outcome.bursts = Samples(), Bursts()


def _tell(outcome: Outcome, judged: Judged) -> None:
    """Errors that the referee found count where they are larger than those that the worker told."""
    for kind in ("mae", "max_abs_err", "rel_l2"):
        told, found = getattr(outcome, kind), getattr(judged, kind)
        if found is not None and (told is None or found > told):
            setattr(outcome, kind, found)
    found = judged.worst_row
    if found is not None and (outcome.worst_row is None or found > outcome.worst_row):
        outcome.worst_row, outcome.worst_row_at = found, judged.worst_row_at


def _claim_ms(outcome: Outcome) -> float | None:
    """The least that a call takes by its own clock."""
    times = [one.time_ms for one in (outcome.samples, outcome.bursts) if one.time_ms]
    return min((quantile(one, 0.5) for one in times), default=None)


def _count(case: Case, claim: float | None) -> int:
    """How many sets of inputs a look is of; one where nothing is timed."""
    if claim is None:
        return 1
    affordable = MOST_BYTES // max(ops.work(case).bytes_min, 1)
    return max(1, min(MOST_CALLS, affordable, math.ceil(LOOK_MS / claim)))


@contextmanager
def _removed(*paths: Path) -> Iterator[None]:
    """What is made there is gone afterwards."""
    try:
        yield
    finally:
        for path in paths:
            with suppress(OSError):
                path.unlink(missing_ok=True)
