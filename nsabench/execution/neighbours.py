"""The shards that are measured at once with this one, on other devices of the same host.

What they do to this device is measured: one case, once while they wait and once while they measure
it, too. Whoever began them all (`fleet.meeting`) says when, over a socket that each was handed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from itertools import count
from select import select

from nsabench.assessment.neighbours import findings
from nsabench.errors import EnvironmentRefused
from nsabench.execution.passes import Beside, Pass
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.model.journal import Contents
from nsabench.model.plan import Plan

VARIABLE = "NSABENCH_NEIGHBOURS"  # DESCRIPTOR:COUNT, without a descriptor where there is no line
# What a shard says: that it has come to a pass that it has not measured yet, or that it has, and
# that it has measured. What it is told: to measure or keep the device busy, and to go on.
WANTED, HAD, MEASURED = b"wanted", b"had", b"measured"
BEGIN, GO_ON = b"begin", b"go on"
LONGEST = 16
BUSY = 500_000  # sessions of a pass from here on are not journaled
LOSSES = 3  # of a worker that was to keep the device busy; it would be lost again
PATIENCE_S = 1800.0  # what one shard is waited for, at most


class Neighbours:
    """count: shards beside this one. Without a line to whoever began them nothing can be measured
    of what they do."""

    def __init__(
        self,
        count: int = 0,
        line: socket.socket | None = None,
        *,
        patience_s: float = PATIENCE_S,
    ) -> None:
        self.count = count
        self._line = line
        # For the others to come to a pass and to measure it, one after another.
        self._patience_s = 2 * (count + 1) * patience_s
        if line is not None:
            line.settimeout(self._patience_s)

    @classmethod
    def handed(cls) -> Neighbours:
        """Those that the environment names, once: what this process starts hears nothing of it."""
        descriptor, _, count = os.environ.pop(VARIABLE, "").partition(":")
        if not count:
            return cls()
        if not descriptor:
            return cls(int(count))
        line = socket.socket(fileno=int(descriptor))
        line.set_inheritable(False)
        return cls(int(count), line)

    @property
    def can_be_asked(self) -> bool:
        return self._line is not None

    def meet(
        self,
        pass_: Pass,
        plan: Plan,
        executor: AbstractContextManager[WorkerExecutor],
        measure: Callable[[WorkerExecutor], None] | None,
    ) -> None:
        """Go through one of the two passes. executor: that of the pass, to be entered. measure:
        measures and journals the pass; None where that was done before, or the plan has no such
        pass: the others wait for this shard all the same. Raises as `alone` does."""
        if pass_.beside is Beside.NOBODY and measure is None:
            self.alone(None)
            return
        if plan.canary is None:
            self.together(None, lambda: False)
            return
        with executor as entered:
            own = partial(measure, entered) if measure is not None else None
            if pass_.beside is Beside.NOBODY:
                self.alone(own)
            else:
                self.together(own, _keeps_busy(pass_, plan, entered))

    def alone(self, measure: Callable[[], None] | None) -> None:
        """Measure while the others wait, in turn, and wait until all have. measure: None where that
        was done before.

        Raises `EnvironmentRefused` when one of them ended instead.
        """
        if self._come(measure is not None) and measure is not None:
            measure()
            self._say(MEASURED)
            self._hear()

    def together(self, measure: Callable[[], None] | None, busy: Callable[[], bool]) -> None:
        """Measure while the others do, and keep the device busy until all have. busy: keeps it so
        for a while; whether it still can. Raises as `alone` does."""
        if not self._come(measure is not None):
            return
        if measure is not None:
            measure()
            self._say(MEASURED)
        while not self._is_told() and busy():
            pass
        self._hear()

    def _come(self, wanted: bool) -> bool:
        """Say that this shard has come so far, and wait; whether anybody measures now."""
        self._say(WANTED if wanted else HAD)
        return self._hear() == BEGIN

    def _is_told(self) -> bool:
        assert self._line is not None
        return bool(select([self._line], [], [], 0)[0])

    def _say(self, message: bytes) -> None:
        assert self._line is not None
        try:
            self._line.send(message)
        except (BrokenPipeError, ConnectionResetError):
            raise _ended() from None

    def _hear(self) -> bytes:
        assert self._line is not None
        try:
            message = self._line.recv(LONGEST)
        except ConnectionResetError:
            message = b""
        except TimeoutError:
            raise EnvironmentRefused(
                f"the shards beside this one were waited for {self._patience_s / 60:.3g} min, and "
                f"it is not known what they do to each other",
                "see what they wait for, then give the same command again: it goes on with all of "
                "them.",
            ) from None
        if not message:
            raise _ended()
        return message


def _keeps_busy(pass_: Pass, plan: Plan, executor: WorkerExecutor) -> Callable[[], bool]:
    """What measures the case of a pass once more, and journals nothing; whether it is of use to do
    so again."""
    sessions = count(pass_.first_session + BUSY)
    planned = plan.canary
    assert planned is not None
    names = pass_.cells(plan, dict).get(planned.id, list(planned.implementations))
    lost = 0

    def measure() -> bool:
        nonlocal lost
        try:
            executor.measure(planned.case, names, next(sessions))
        except GroupLost:  # the shards that listen are none the worse for it
            lost += 1
        return lost < LOSSES

    return measure


def tell_what_they_do(
    pass_: Pass, plan: Plan, contents: Contents, note: Callable[[str], None]
) -> None:
    """Say after the second pass what speaks against all that will be measured: at once, since that
    may take hours."""
    if pass_.beside is Beside.ALL:
        for finding in findings(plan, contents):
            note(f"{finding.sentence}: its verdicts will be inconclusive")


def _ended() -> EnvironmentRefused:
    return EnvironmentRefused(
        "a shard beside this one ended before it was known what they do to each other",
        "see why it did, then give the same command again: it goes on with all of them.",
    )
