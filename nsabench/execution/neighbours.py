"""The shards that are measured at once with this one, on other devices of the same host.

What they do to this device is measured: one case, once while they wait and once while they measure
it, too. Whoever began them all (`fleet.meeting`) says when, over a socket that each was handed.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from functools import partial
from itertools import count
from select import select

from nsabench.errors import EnvironmentRefused
from nsabench.execution.passes import Beside, Pass
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
from nsabench.model.plan import Plan

VARIABLE = "NSABENCH_NEIGHBOURS"  # DESCRIPTOR:COUNT
# What a shard says: that it has come to a pass that it has not measured yet, or that it has, and
# that it has measured. What it is told: to measure or keep the device busy, and to go on.
WANTED, HAD, MEASURED = b"wanted", b"had", b"measured"
BEGIN, GO_ON = b"begin", b"go on"
LONGEST = 16
BUSY = 500_000  # sessions of a pass from here on are not journaled


class Neighbours:
    """count: shards beside this one. Without a line to whoever began them nothing can be measured
    of what they do."""

    def __init__(self, count: int = 0, line: socket.socket | None = None) -> None:
        self.count = count
        self._line = line

    @classmethod
    def handed(cls) -> Neighbours:
        """Those that the environment names, once: what this process starts hears nothing of it."""
        descriptor, _, count = os.environ.pop(VARIABLE, "").partition(":")
        if not count:
            return cls()
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
        measures and journals the pass; None where that was done before. Raises as `alone` does."""
        if pass_.beside is Beside.NOBODY and measure is None:
            self.alone(None)
            return
        with executor as entered:
            own = partial(measure, entered) if measure is not None else None
            if pass_.beside is Beside.NOBODY:
                self.alone(own)
            else:
                self.together(own, _keeps_busy(pass_, plan, entered))

    def alone(self, measure: Callable[[], None] | None) -> None:
        """Measure while the others wait, in turn. measure: None where that was done before.

        Raises `EnvironmentRefused` when one of them ended instead.
        """
        if self._come(measure is not None) and measure is not None:
            measure()
            self._say(MEASURED)

    def together(self, measure: Callable[[], None] | None, busy: Callable[[], None]) -> None:
        """Measure while the others do, and keep the device busy until all have. Raises as `alone`
        does."""
        if not self._come(measure is not None):
            return
        if measure is not None:
            measure()
            self._say(MEASURED)
        while not self._is_told():
            busy()
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
        if not message:
            raise _ended()
        return message


def _keeps_busy(pass_: Pass, plan: Plan, executor: WorkerExecutor) -> Callable[[], None]:
    """What measures the case of a pass once more, and journals nothing."""
    sessions = count(pass_.first_session + BUSY)
    planned = plan.canary
    assert planned is not None

    def measure() -> None:
        with suppress(GroupLost):  # the shards that listen are none the worse for it
            executor.measure(planned.case, list(planned.implementations), next(sessions))

    return measure


def _ended() -> EnvironmentRefused:
    return EnvironmentRefused(
        "a shard beside this one ended before it was known what they do to each other",
        "see why it did, then give the same command again: it goes on with all of them.",
    )
