"""Start one worker process, talk to it under a deadline, and leave nothing of it behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from secrets import token_hex
from typing import NoReturn, TypeVar

import psutil

from nsabench.model.job import Death
from nsabench.model.measurement import Message
from nsabench.running.supervisor import death, family, program, templates
from nsabench.running.supervisor.death import WorkerLost, WorkerRefused
from nsabench.running.supervisor.program import Program
from nsabench.running.supervisor.timeouts import MAX_STEPS, Deadline
from nsabench.worker.protocol import GO, Calibrate, Describe, Refused, Step
from nsabench.worker.template import MAILBOX

TERM_GRACE_S = 2.0
REAP_S = 10.0
READ_TIMEOUT_S = 20.0  # of a worker that waits for a request
POLL_S = 0.25
MEMORY_SHARE = 0.85  # of the host memory that is free when a worker starts
# RLIMIT_NPROC does not limit root. A compiler may start one process for each core.
MOST_PROCESSES = 64 + 4 * (os.cpu_count() or 1)
MAX_REPLY_BYTES = 64 << 20
READ_BYTES = 1 << 16
HEAD_BYTES, TAIL_BYTES = 256 << 10, 64 << 10  # kept of what a worker prints
MOST_PRINTED_BYTES = 1 << 20  # a pipe holds no more, unless root made it larger
REFUSALS = (1, 2, 3)  # exit codes a worker may ask for
PR_SET_CHILD_SUBREAPER = 36

M = TypeVar("M", bound=Message)
Take = Callable[[Message], Message | None]

_workers: set[int] = set()
# Several threads start workers. A new worker must not be taken for an orphan.
_births = threading.Lock()


class Printed:
    """The beginning and the end of what a worker prints. Any thread may call it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def clear(self) -> None:
        with self._lock:
            self._head, self._tail, self._dropped = bytearray(), bytearray(), 0

    def write(self, data: bytes) -> None:
        with self._lock:
            room = HEAD_BYTES - len(self._head)
            self._head += data[:room]
            self._tail += data[room:]
            excess = max(len(self._tail) - TAIL_BYTES, 0)
            del self._tail[:excess]
            self._dropped += excess

    def text(self) -> str:
        with self._lock:
            middle = f"\n[... {self._dropped} bytes left out ...]\n" if self._dropped else ""
            raw = bytes(self._head) + middle.encode() + bytes(self._tail)
        return raw.decode("utf-8", "replace")


class WorkerProcess:
    def __init__(self, runs: Program) -> None:
        _adopt_orphans()
        self._replies = runs.replies
        self._siblings = family.children(os.getpid())
        self._born = time.time()
        with _births:
            self._process = _start(runs)
            _workers.add(self.pid)
        stdin, stdout, stderr = self._process.stdin, self._process.stdout, self._process.stderr
        assert stdin is not None and stdout is not None and stderr is not None
        self._stdin, self._stdout, self._stderr = stdin, stdout, stderr
        # An answer without it was written by foreign code on the worker's descriptor.
        self._nonce = token_hex(16).encode()
        # A write into a full pipe that the worker does not read would never end.
        os.set_blocking(self._stdin.fileno(), False)
        os.set_blocking(self._stderr.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # it died; the first request raises
            self._stdin.write(self._nonce + b"\n")
        self._has_answered = False
        self._may_refuse = True  # until it has imported foreign code
        self._is_stopped = False
        self.log = Printed()
        self._step = Step(phase="start")
        self._memory_limit = int(psutil.virtual_memory().available * MEMORY_SHARE)
        self._weighed_at = time.monotonic()
        self._buffer = bytearray()
        # The kernel's out-of-memory killer must pick the worker, not the supervisor.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text("1000")
        self._printed = threading.Lock()
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self,
        request: Message,
        expected: type[M],
        limit_s: float,
        max_steps: int = MAX_STEPS,
        take: Take = lambda reply: None,
    ) -> M:
        """Return the answer; see `WarmWorker.ask`."""
        deadline = Deadline(limit_s, max_steps)
        reads_within_s = deadline.step_s
        if self._has_answered:
            name = getattr(request, "implementation", "")
            self._step = Step(phase="request", implementation=name)
            reads_within_s = READ_TIMEOUT_S
        try:
            self._write(request.model_dump_json().encode() + b"\n", reads_within_s)
        except BrokenPipeError:
            raise self._died() from None
        self._step = Step(phase="start")
        while True:
            reply = self._receive(deadline)
            if isinstance(reply, expected):
                self._has_answered = True
                self._may_refuse &= isinstance(request, Describe | Calibrate)
                self._take_printed()  # what precedes the answer belongs to this request
                return reply
            if isinstance(reply, Step):
                self._step = reply
                if broken := deadline.renew(reply):
                    raise self._broke(broken)
            elif isinstance(reply, Refused):
                self._refuse(reply)
            response = take(reply)
            if response is not None:
                data = response.model_dump_json().encode() + b"\n"
            elif isinstance(reply, Step):
                data = GO if reply.awaits else b""
            else:
                raise self._broke(f"answered with a {type(reply).__name__}")
            with contextlib.suppress(BrokenPipeError):  # it died; what comes next says how
                self._write(data, deadline.step_s)

    def _refuse(self, reply: Refused) -> NoReturn:
        is_early = self._may_refuse and self._step.phase == "start"
        if not is_early or reply.exit_code not in REFUSALS:
            raise self._broke("sent a refusal in the middle of measuring")
        self.stop()
        raise WorkerRefused(reply.sentence, reply.remedy, reply.exit_code)

    def _write(self, data: bytes, limit_s: float) -> None:
        """Raise `WorkerLost` if the worker does not read in time, `BrokenPipeError` if it died."""
        ends = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdin, selectors.EVENT_WRITE)
            while data:
                data = data[self._stdin.write(data) or 0 :]
                if data and time.monotonic() >= ends:
                    raise self._lost(death.timed_out(self._step, limit_s))
                selector.select(POLL_S if data else 0)

    def _receive(self, deadline: Deadline) -> Message:
        """Return the next reply. Only waiting counts for the deadline."""
        began = time.monotonic()
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                now = time.monotonic()
                left_s = began + deadline.left_s - now
                if left_s <= 0:
                    raise self._lost(death.timed_out(self._step, deadline.step_s))
                if now - self._weighed_at >= POLL_S:  # it takes milliseconds
                    self._weighed_at = now
                    self._refuse_excess()
                if not selector.select(min(left_s, POLL_S)):
                    continue
                data = os.read(self._stdout.fileno(), 1 << 20)
                if not data:
                    raise self._died()
                if len(self._buffer) > MAX_REPLY_BYTES:
                    raise self._broke(f"sent more than {MAX_REPLY_BYTES >> 20} MiB in one answer")
                self._buffer += data
        deadline.left_s -= time.monotonic() - began
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        nonce, _, content = bytes(line).partition(b" ")
        try:
            if nonce != self._nonce:
                raise ValueError("not of the worker")
            reply: Message = self._replies.validate_json(content)
            return reply
        except ValueError:
            self.log.write(b"\n[nsabench] the worker sent: " + bytes(line[:500]) + b"\n")
            raise self._broke("wrote on the descriptor of the worker's answers") from None

    def _lost(self, how: Death) -> WorkerLost:
        self.stop()
        return WorkerLost(how)

    def _broke(self, how: str) -> WorkerLost:
        return self._lost(death.broke_protocol(how, self._step))

    def _died(self) -> WorkerLost:
        try:
            returncode = self._process.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            return self._broke("closed the descriptor of the worker's answers and went on")
        self.stop()
        return WorkerLost(death.died(self._step, returncode, self.log.text()))

    def _refuse_excess(self) -> None:
        orphans = {orphan.pid for orphan in _orphans(self._siblings, self._born)}
        started = orphans.union(*map(family.descendants, (self.pid, *orphans)))
        if len(started) > MOST_PROCESSES:
            raise self._broke(f"started more than {MOST_PROCESSES} processes")
        if family.takes_more(self.pid, self._memory_limit):
            raise self._lost(death.took_too_much_memory(self._step, self._memory_limit))

    def children(self) -> list[psutil.Process]:
        return [p for p in family.family(self.pid) if p.pid != self.pid]

    def _drain_stderr(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._stderr, selectors.EVENT_READ)
            while self._take_printed():
                selector.select()

    def _take_printed(self) -> bool:
        """Move the content of the pipe into the log. Return whether more may come."""
        with self._printed:
            for _ in range(MOST_PRINTED_BYTES // READ_BYTES):
                try:
                    data = os.read(self._stderr.fileno(), READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    return False
                self.log.write(data)
        return True

    def kill(self) -> None:
        """End the process group; the thread that waits for an answer stops the worker."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the worker, its process group and all its descendants: TERM, then KILL."""
        if self._is_stopped:
            return
        left = family.family(self.pid)
        for signum in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signum)
            if self._process.poll() is not None and not family.alive(left):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(TERM_GRACE_S)
            left = psutil.wait_procs(family.alive(left), TERM_GRACE_S)[1]
        _workers.discard(self.pid)
        self._stdin.close()
        self._stdout.close()
        reap_orphans(self._siblings, self._born)
        self._drain.join(TERM_GRACE_S)
        if not self._drain.is_alive():  # else a process that escaped still holds the other end
            self._stderr.close()
        self._is_stopped = True


class WarmWorker:
    """Starts a process for the first request, and a new one after a process was lost."""

    def __init__(self, make_program: Callable[[], Program]) -> None:
        self.process: WorkerProcess | None = None
        self.log = Printed()  # of the last process
        self._make_program = make_program
        self._is_killed = False

    def ask(
        self,
        request: Message,
        expected: type[M],
        limit_s: float,
        max_steps: int = MAX_STEPS,
        take: Take = lambda reply: None,
    ) -> M:
        """Return the answer. Raises `WorkerLost` or `WorkerRefused`.

        take: called with every other reply; returns what the worker is told.
        """
        process = self.process = self.process or WorkerProcess(self._make_program())
        if self._is_killed:
            process.kill()
        self.log = process.log
        self.log.clear()
        try:
            return process.ask(request, expected, limit_s, max_steps, take)
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


def _start(runs: Program) -> templates.ForkedProcess | subprocess.Popen[bytes]:
    arguments = [*runs.options, "--parent", str(os.getpid())]

    def with_mailbox(number: int | None) -> list[str]:
        return arguments if runs.mailbox is None else [*arguments, "--mailbox", str(number)]

    try:
        forked = with_mailbox(MAILBOX)
        return templates.fork(runs.module, forked, runs.environment, runs.mailbox)
    except templates.NoTemplate:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", runs.module, *with_mailbox(runs.mailbox)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(runs.environment),
            bufsize=0,
            pass_fds=[] if runs.mailbox is None else [runs.mailbox],
        )


def _adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs, so that none escapes."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def own_processes() -> set[int]:
    with _births:
        return _workers | templates.pids()


def reap_orphans(siblings: set[int], born: float) -> None:
    """Kill, by whole groups, the processes adopted since a worker was started."""
    ends = time.monotonic() + REAP_S  # they may fork meanwhile
    while (orphans := _orphans(siblings, born)) and time.monotonic() < ends:
        for orphan in orphans:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                group = os.getpgid(orphan.pid)
                if group not in _workers | {os.getpgid(0)}:
                    os.killpg(group, signal.SIGKILL)
            for process in family.family(orphan.pid):
                with contextlib.suppress(psutil.Error):
                    process.kill()
        psutil.wait_procs(orphans, TERM_GRACE_S)


def _orphans(siblings: set[int], born: float) -> list[psutil.Process]:
    with _births:
        ours = _workers | templates.pids() | siblings
        children = family.processes_of(family.children(os.getpid()) - ours)
    return [child for child in children if _was_left_behind(child, born)]


def _was_left_behind(child: psutil.Process, born: float) -> bool:
    """Return whether a child carries the mark, or hides it in a session of its own."""
    try:
        foreign = child.create_time() >= born - 1 and os.getsid(child.pid) != os.getsid(0)
        return foreign or child.environ().get(program.MARK) == program.mark
    except (psutil.Error, ProcessLookupError):  # it has ended, or made itself unreadable
        return False
