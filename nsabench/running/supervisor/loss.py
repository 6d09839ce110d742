"""The ways in which a worker is lost."""

from __future__ import annotations

from nsabench.errors import NsabenchError
from nsabench.worker.protocol import Step


class WorkerRefused(NsabenchError):
    """It refused to measure before foreign code was called: a source cannot be imported, say."""

    def __init__(self, sentence: str, remedy: str, exit_code: int) -> None:
        super().__init__(sentence, remedy)
        self.exit_code = exit_code


class WorkerLost(Exception):
    """The worker is gone. `step` is what it was last busy with."""

    def __init__(self, step: Step) -> None:
        super().__init__(step.phase)
        self.step = step


class WorkerTimedOut(WorkerLost):
    """A step took longer than it may; the whole process group was killed."""

    def __init__(self, step: Step, limit_s: float) -> None:
        super().__init__(step)
        self.limit_s = limit_s


class WorkerDied(WorkerLost):
    """The process ended by itself, with this exit code (negative: the signal) and last words."""

    def __init__(self, step: Step, returncode: int, log: str) -> None:
        super().__init__(step)
        self.returncode = returncode
        self.log = log


class WorkerBrokeProtocol(WorkerLost):
    """It wrote, or closed, what only the bench may: nothing that this process says counts."""

    def __init__(self, step: Step, how: str, log: str) -> None:
        super().__init__(step)
        self.how = how
        self.log = log


class WorkerFilledScratch(WorkerBrokeProtocol):
    """It wrote more to its scratch than it may, or what cannot be walked through. Whoever finds
    that there would be ended, too."""


class WorkerTooLarge(WorkerLost):
    """The process group took more host memory than it may; it was killed."""

    def __init__(self, step: Step, limit_bytes: int) -> None:
        super().__init__(step)
        self.limit_bytes = limit_bytes
