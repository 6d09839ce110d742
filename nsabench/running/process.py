"""Send requests to a process under a budget of time and steps. End all processes that it started.

A timeout, an exit code or a signal becomes a status with a reason.
"""

from __future__ import annotations

import contextlib
import os
import re
import selectors
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import IO, TypeVar

import psutil

from nsabench.channel import GO, Refused, Step
from nsabench.errors import NsabenchError
from nsabench.model.job import Death
from nsabench.model.measurement import Message
from nsabench.model.vocabulary import Status
from nsabench.running import process_tree
from nsabench.running.process_tree import START_TIMEOUT_S, Orphans, Program
from nsabench.worker.protocol import Describe, MeasureCeilings

MAX_STEPS = 1000
MAX_ALLOWANCE = 64.0
# The largest mean of `Step.allowance`. Only the few steps that call all arms ask for more.
ALLOWANCE_EACH = 2.0
TERM_GRACE_S = 2.0
READ_TIMEOUT_S = 20.0  # the time that an idle process has to read a request
POLL_S = 0.25
MEMORY_SHARE = 0.85  # a process gets this share of the host memory that is free at its start
# Processes are counted, since RLIMIT_NPROC does not limit root. Compilers may start one per core.
MOST_PROCESSES = 64 + 4 * (os.cpu_count() or 1)
MAX_REPLY_BYTES = 64 << 20
READ_BYTES = 1 << 16
HEAD_BYTES, TAIL_BYTES = 256 << 10, 64 << 10  # what is kept of the start and end of long output
MOST_PRINTED_BYTES = 1 << 20  # a pipe holds no more, unless root made it larger
REFUSALS = (1, 2, 3)  # exit codes that a process may name when it refuses
LAST_LINES = 3
MAX_LINE = 1000  # characters that are read of a line: foreign output may have lines of a gigabyte

# Patterns to find in the output of a dead process, the most telling first.
SIGNATURES: tuple[tuple[str, Status, re.Pattern[str]], ...] = (
    ("ptxas", Status.COMPILE_ERROR, re.compile(r"ptxas (fatal|error)")),
    ("MLIR", Status.COMPILE_ERROR, re.compile(r"(mlir|triton).{0,500}Assertion .{0,500} failed")),
    ("LLVM", Status.COMPILE_ERROR, re.compile(r"LLVM ERROR:")),
    ("CUDA out of memory", Status.OUT_OF_MEMORY, re.compile(r"CUDA out of memory")),
    ("CUDA", Status.CRASHED, re.compile(r"CUDA error:|CUDA_ERROR_\w+")),
    ("host out of memory", Status.OUT_OF_MEMORY, re.compile(r"MemoryError|bad_alloc")),
)

M = TypeVar("M", bound=Message)
# Called with every reply except the answer. Returns the response to the process, if it needs one.
Listen = Callable[[Message], Message | None]


class StepBudget:
    """Limits each step of a request, the number of steps and the sum of their times."""

    def __init__(self, limit_s: float, max_steps: int) -> None:
        # The limit of the current step, and what is left of it. The first step may take longer.
        self.step_s = self.left_s = max(START_TIMEOUT_S, limit_s)
        self._limit_s = limit_s
        self._max_steps = self._steps_left = max_steps
        self._allowance_left = ALLOWANCE_EACH * max_steps

    def begin(self, step: Step) -> str:
        """Start the time of a step. Return what the process did wrong, or an empty string."""
        self._steps_left -= 1
        if self._steps_left < 0:
            return f"reported more than {self._max_steps} steps"
        if step.phase != "start":
            self._allowance_left -= step.allowance
            if not self._allowance_left >= 0:
                return "asked for more time than its work can take"
            self.step_s = self._limit_s * min(step.allowance, MAX_ALLOWANCE)
        self.left_s = self.step_s
        return ""


class Printed:
    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._kept, self._dropped = bytearray(), 0

    def write(self, data: bytes) -> None:
        self._kept += data
        excess = max(len(self._kept) - HEAD_BYTES - TAIL_BYTES, 0)
        del self._kept[HEAD_BYTES : HEAD_BYTES + excess]
        self._dropped += excess

    def text(self) -> str:
        middle = b"\n[... %d bytes left out ...]\n" % self._dropped if self._dropped else b""
        kept = self._kept[:HEAD_BYTES] + middle + self._kept[HEAD_BYTES:]
        return kept.decode("utf-8", "replace")


class Process:
    def __init__(self, program: Program) -> None:
        self._replies = program.replies
        self._orphans = Orphans()
        self._process = process_tree.start_worker(program)
        self.pid = self._process.pid
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        # Each reply begins with this secret. Foreign code that writes a reply does not know it.
        self._nonce = token_hex(16).encode()
        # A write into a full pipe that the process does not read would never end.
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stderr.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # the process died; the first request raises
            self._stdin.write(self._nonce + b"\n")
        self._has_answered = False
        self._may_refuse = True  # until it has answered a request that imports foreign code
        self._is_stopped = False
        self._prints = True  # its stderr is open
        self.log = Printed()
        self._step = Step(phase="start")
        self._memory_limit = int(psutil.virtual_memory().available * MEMORY_SHARE)
        self._weighed_at = time.monotonic()
        self._buffer = bytearray()
        # If memory runs out, Linux must kill the started process, not the one that runs this code.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text("1000")

    def ask(
        self, request: Message, expected: type[M], limit_s: float, max_steps: int, listen: Listen
    ) -> M:
        budget = StepBudget(limit_s, max_steps)
        reads_within_s = budget.step_s
        if self._has_answered:
            name = getattr(request, "implementation", "")
            self._step = Step(phase="request", implementation=name)
            reads_within_s = READ_TIMEOUT_S
        try:
            self._send(request.model_dump_json().encode() + b"\n", reads_within_s)
        except BrokenPipeError:
            raise self._died() from None
        self._step = Step(phase="start")
        while not isinstance(reply := self._receive(budget), expected):
            data = b""
            if isinstance(reply, Step):
                self._step = reply
                if broken := budget.begin(reply):
                    raise self._broke(broken)
                data = GO if reply.awaits else b""
            elif isinstance(reply, Refused):
                is_early = self._may_refuse and self._step.phase == "start"
                if not is_early or reply.exit_code not in REFUSALS:
                    raise self._broke("sent a refusal in the middle of measuring")
                self.stop()
                raise WorkerRefused(reply.sentence, reply.remedy, reply.exit_code)
            response = listen(reply)
            if response is not None:
                data = response.model_dump_json().encode() + b"\n"
            elif not isinstance(reply, Step):
                raise self._broke(f"answered with a {type(reply).__name__}")
            if data:
                with contextlib.suppress(BrokenPipeError):  # `_receive` says how it died
                    self._send(data, budget.step_s)
        self._has_answered = True
        self._may_refuse &= isinstance(request, Describe | MeasureCeilings)
        self._keep_printed()  # output that was printed before the answer belongs to this request
        return reply

    def _send(self, data: bytes, limit_s: float) -> None:
        """Write data. Raises `WorkerLost` if the process is slow, `BrokenPipeError` if it ended."""
        ends = time.monotonic() + limit_s
        while data := data[(self._stdin.write(data) or 0) :]:
            if time.monotonic() >= ends:
                raise self._lost(timed_out(self._step, limit_s))
            self._wait_for(self._stdin, selectors.EVENT_WRITE, POLL_S)

    def _receive(self, budget: StepBudget) -> Message:
        """Return the next reply. Only the wait for it counts against the budget."""
        began = time.monotonic()
        while b"\n" not in self._buffer:
            now = time.monotonic()
            left_s = began + budget.left_s - now
            if left_s <= 0:
                raise self._lost(timed_out(self._step, budget.step_s))
            if now - self._weighed_at >= POLL_S:  # a check takes milliseconds
                self._weighed_at = now
                self._refuse_excess()
            if not self._wait_for(self._stdout, selectors.EVENT_READ, min(left_s, POLL_S)):
                continue
            data = os.read(self._stdout.fileno(), 1 << 20)
            if not data:
                raise self._died()
            if len(self._buffer) > MAX_REPLY_BYTES:
                raise self._broke(f"sent more than {MAX_REPLY_BYTES >> 20} MiB in one answer")
            self._buffer += data
        budget.left_s -= time.monotonic() - began
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        nonce, _, content = bytes(line).partition(b" ")
        try:
            if nonce != self._nonce:
                raise ValueError("the nonce is missing")
            reply: Message = self._replies.validate_json(content)
            return reply
        except ValueError:
            self.log.write(b"\n[nsabench] the worker sent: " + bytes(line[:500]) + b"\n")
            raise self._broke("wrote on the descriptor of the worker's answers") from None

    def _wait_for(self, stream: IO[bytes], event: int, limit_s: float) -> bool:
        with selectors.DefaultSelector() as selector:
            selector.register(stream, event)
            if self._prints:
                selector.register(self._stderr, selectors.EVENT_READ)
            ready = [key.fileobj for key, _ in selector.select(limit_s)]
        if self._stderr in ready:
            self._keep_printed()
        return stream in ready

    def _keep_printed(self) -> None:
        for _ in range(MOST_PRINTED_BYTES // READ_BYTES):
            try:
                data = os.read(self._stderr.fileno(), READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                self._prints = False
                return
            self.log.write(data)

    def _lost(self, how: Death) -> WorkerLost:
        self.stop()
        return WorkerLost(how)

    def _broke(self, how: str) -> WorkerLost:
        return self._lost(broke_protocol(how, self._step))

    def _died(self) -> WorkerLost:
        ends = time.monotonic() + TERM_GRACE_S
        while (returncode := self._process.poll()) is None:
            if time.monotonic() >= ends:
                return self._broke("closed the descriptor of the worker's answers and went on")
            self._keep_printed()  # a full pipe keeps the process from ending
            time.sleep(0.01)
        self.stop()
        return WorkerLost(died(self._step, returncode, self.log.text()))

    def _refuse_excess(self) -> None:
        orphans = {orphan.pid for orphan in self._orphans.find()}
        started = orphans.union(*map(process_tree.list_descendants, (self.pid, *orphans)))
        if len(started) > MOST_PROCESSES:
            raise self._broke(f"started more than {MOST_PROCESSES} processes")
        if process_tree.takes_more(self.pid, self._memory_limit):
            raise self._lost(took_too_much_memory(self._step, self._memory_limit))

    def kill(self) -> None:
        """Kill the process group. The thread that waits for an answer then calls `stop`."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the process, its process group and all its descendants: TERM, then KILL."""
        if self._is_stopped:
            return
        left = process_tree.list_family(self.pid)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signum)
            if self._process.poll() is not None and not process_tree.select_alive(left):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_GRACE_S)
            left = psutil.wait_procs(process_tree.select_alive(left), TERM_GRACE_S)[1]
        process_tree.forget_worker(self.pid)
        self._orphans.kill()
        self._keep_printed()
        for stream in (self._stdin, self._stdout, self._stderr):
            stream.close()
        self._is_stopped = True


class WarmProcess:
    """Starts a process for the first request, and a new one after the last one has ended."""

    def __init__(self, make_program: Callable[[], Program]) -> None:
        self.process: Process | None = None
        self.log = Printed()  # of the last process
        self._make_program = make_program
        self._is_killed = False

    def ask(
        self,
        request: Message,
        expected: type[M],
        limit_s: float,
        max_steps: int = MAX_STEPS,
        listen: Listen = lambda reply: None,
    ) -> M:
        """Return the answer. Raises `WorkerLost` or `WorkerRefused`."""
        process = self.process = self.process or Process(self._make_program())
        if self._is_killed:
            process.kill()
        self.log = process.log
        self.log.clear()
        try:
            return process.ask(request, expected, limit_s, max_steps, listen)
        except BaseException:
            self.retire()
            raise

    def kill(self) -> None:
        """Kill the process, and every later one. The thread that asks gets `WorkerLost`."""
        self._is_killed = True
        if (process := self.process) is not None:
            process.kill()

    def retire(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            process.stop()


class WorkerLost(Exception):
    def __init__(self, death: Death) -> None:
        super().__init__(death.reason)
        self.death = death
        self.reason = death.reason


class CheckerLost(WorkerLost):
    """The checker ended, or did not answer in time."""


class WorkerRefused(NsabenchError):
    """A worker does not begin: it cannot import a source, or finds no device, for example."""

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
        killer = ", not by nsabench: most likely Linux's out-of-memory killer"
        return _death(step, Status.OUT_OF_MEMORY, how, killer)
    words = f"; last output: {' | '.join(lines[-LAST_LINES:])[:300]}" if lines else ""
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
