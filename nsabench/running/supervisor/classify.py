"""What a worker's death means: exit code, signal and last words become a status and a reason."""

from __future__ import annotations

import re
import signal

from nsabench.model.vocabulary import Status
from nsabench.running.supervisor.loss import (
    WorkerBrokeProtocol,
    WorkerDied,
    WorkerLost,
    WorkerTimedOut,
    WorkerTooLarge,
)

LAST_LINES = 3

# Looked for in the last words of a process that is already known to have died, most telling first.
SIGNATURES: tuple[tuple[str, Status, re.Pattern[str]], ...] = (
    ("ptxas", Status.COMPILE_ERROR, re.compile(r"ptxas (fatal|error)")),
    ("MLIR", Status.COMPILE_ERROR, re.compile(r"(mlir|triton).{0,500}Assertion .{0,500} failed")),
    ("LLVM", Status.COMPILE_ERROR, re.compile(r"LLVM ERROR:")),
    ("CUDA out of memory", Status.OUT_OF_MEMORY, re.compile(r"CUDA out of memory")),
    ("CUDA", Status.CRASHED, re.compile(r"CUDA error:|CUDA_ERROR_\w+")),
    ("host out of memory", Status.OUT_OF_MEMORY, re.compile(r"MemoryError|bad_alloc")),
)
MAX_LINE = 1000  # foreign output: a line may be a gigabyte long


def classify(lost: WorkerLost) -> tuple[Status, str]:
    """The status of the implementation that lost its worker, and the reason."""
    during = f"during {lost.step.phase}"
    match lost:
        case WorkerTimedOut():
            return Status.TIMEOUT, f"no answer within {lost.limit_s:g} s {during}; killed"
        case WorkerTooLarge():
            limit = f"{lost.limit_bytes / 2**30:.1f} GiB"
            return Status.OUT_OF_MEMORY, f"took more than {limit} of host memory {during}; killed"
        case WorkerBrokeProtocol():
            return Status.CRASHED, f"its process {lost.how} {during}; killed"
        case WorkerDied():
            return _of_death(lost, during)
    return Status.CRASHED, f"the worker was lost {during}"


def _of_death(died: WorkerDied, during: str) -> tuple[Status, str]:
    how = _how(died.returncode)
    lines = [line[:MAX_LINE].strip() for line in died.log.splitlines() if line.strip()]
    for name, status, pattern in SIGNATURES:
        telling = next((line for line in lines if pattern.search(line)), None)
        if telling is not None:
            # A compiler that aborts the process is worse than one that reports an error.
            if status is Status.COMPILE_ERROR and died.returncode < 0:
                status = Status.CRASHED
            return status, f"{how} {during}; {name}: {telling[:300]}"
    if died.returncode == -signal.SIGKILL:
        return (
            Status.OUT_OF_MEMORY,
            f"{how} {during}, not by nsabench: most likely the kernel's out-of-memory killer",
        )
    words = f"; last words: {' | '.join(lines[-LAST_LINES:])[:300]}" if lines else ""
    return Status.CRASHED, f"{how} {during}{words}"


def _how(returncode: int) -> str:
    if returncode < 0:
        return f"its process was killed by {_signal_name(-returncode)}"
    return f"its process ended with exit code {returncode}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
