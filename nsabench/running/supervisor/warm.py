"""A worker that is kept between requests and replaced when it is lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from nsabench.model.measurement import Message
from nsabench.running.supervisor.death import WorkerLost, broke_protocol
from nsabench.running.supervisor.printed import Printed
from nsabench.running.supervisor.process import WorkerProcess
from nsabench.running.supervisor.program import Program
from nsabench.running.supervisor.timeouts import MAX_STEPS

M = TypeVar("M", bound=Message)


class WarmWorker:
    """Starts a process for the first request, and a new one after a process was lost."""

    def __init__(
        self, make_program: Callable[[], Program], memory_limit_bytes: int | None = None
    ) -> None:
        self.process: WorkerProcess | None = None
        self.log = Printed()  # of the last process
        self._make_program = make_program
        self._memory_limit = memory_limit_bytes
        self._is_killed = False

    def ask(
        self,
        request: Message,
        expected: type[M],
        limit_s: float,
        max_steps: int = MAX_STEPS,
        take: Callable[[Message], None] = lambda reply: None,
    ) -> M:
        """Return the answer; other replies go to `take`. Raises `WorkerLost` or `WorkerRefused`."""
        process = self.process = self.process or WorkerProcess(
            self._make_program(), memory_limit_bytes=self._memory_limit
        )
        if self._is_killed:
            process.kill()
        self.log = process.log
        self.log.clear()
        try:
            for reply in process.ask(request, limit_s, max_steps=max_steps):
                if isinstance(reply, expected):
                    return reply
                take(reply)
            raise WorkerLost(broke_protocol(f"answered with a {type(reply).__name__}"))
        except BaseException:
            self.retire()
            raise

    def kill(self) -> None:
        """End the process at once and for good; the thread that asks finds it lost."""
        self._is_killed = True
        if (process := self.process) is not None:
            process.kill()

    def retire(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.stop()
