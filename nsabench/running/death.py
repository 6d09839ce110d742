"""Turn a timeout, an exit code or a signal of a worker into a status with a reason."""

from __future__ import annotations

import re
import signal

from nsabench.channel import Step
from nsabench.errors import NsabenchError
from nsabench.model.job import Death
from nsabench.model.vocabulary import Status

LAST_LINES = 3
MAX_LINE = 1000  # foreign output: a line may be a gigabyte long

# Searched for in the output of a dead process, the most telling first.
SIGNATURES: tuple[tuple[str, Status, re.Pattern[str]], ...] = (
    ("ptxas", Status.COMPILE_ERROR, re.compile(r"ptxas (fatal|error)")),
    ("MLIR", Status.COMPILE_ERROR, re.compile(r"(mlir|triton).{0,500}Assertion .{0,500} failed")),
    ("LLVM", Status.COMPILE_ERROR, re.compile(r"LLVM ERROR:")),
    ("CUDA out of memory", Status.OUT_OF_MEMORY, re.compile(r"CUDA out of memory")),
    ("CUDA", Status.CRASHED, re.compile(r"CUDA error:|CUDA_ERROR_\w+")),
    ("host out of memory", Status.OUT_OF_MEMORY, re.compile(r"MemoryError|bad_alloc")),
)


class WorkerLost(Exception):
    """A worker ended before it answered."""

    def __init__(self, death: Death) -> None:
        super().__init__(death.reason)
        self.death = death
        self.reason = death.reason


class CheckerLost(WorkerLost):
    """The checker ended, or did not answer in time."""


class WorkerRefused(NsabenchError):
    """A worker cannot import a source, or finds no device."""

    def __init__(self, sentence: str, remedy: str, exit_code: int) -> None:
        super().__init__(sentence, remedy)
        self.exit_code = exit_code


def timed_out(step: Step, limit_s: float) -> Death:
    return _death(step, Status.TIMEOUT, f"no answer within {limit_s:g} s", "; killed")


def took_too_much_memory(step: Step, limit_bytes: int) -> Death:
    how = f"took more than {limit_bytes / 2**30:.1f} GiB of host memory"
    return _death(step, Status.OUT_OF_MEMORY, how, "; killed")


def broke_protocol(how: str, step: Step | None = None) -> Death:
    if step is None:
        return Death(status=Status.CRASHED, reason=f"its process {how}; killed")
    return _death(step, Status.CRASHED, f"its process {how}", "; killed")


def died(step: Step, returncode: int, log: str) -> Death:
    how = _describe_exit(returncode)
    lines = [line[:MAX_LINE].strip() for line in log.splitlines() if line.strip()]
    for name, status, pattern in SIGNATURES:
        telling = next((line for line in lines if pattern.search(line)), None)
        if telling is not None:
            # A compiler that aborts the process is worse than one that reports an error.
            if status is Status.COMPILE_ERROR and returncode < 0:
                status = Status.CRASHED
            return _death(step, status, how, f"; {name}: {telling[:300]}")
    if returncode == -signal.SIGKILL:
        killer = ", not by nsabench: most likely the kernel's out-of-memory killer"
        return _death(step, Status.OUT_OF_MEMORY, how, killer)
    words = f"; last words: {' | '.join(lines[-LAST_LINES:])[:300]}" if lines else ""
    return _death(step, Status.CRASHED, how, words)


def _death(step: Step, status: Status, how: str, more: str) -> Death:
    reason = f"{how} during {step.phase}{more}"
    return Death(status=status, reason=reason, suspect=step.implementation, phase=step.phase)


def _describe_exit(returncode: int) -> str:
    if returncode >= 0:
        return f"its process ended with exit code {returncode}"
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return f"its process was killed by {name}"
