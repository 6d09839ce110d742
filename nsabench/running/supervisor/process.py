"""One worker process: start it, talk to it under a deadline, and leave nothing of it behind."""

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
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex

import psutil

from nsabench.delivery import Delivery
from nsabench.model.measurement import Message
from nsabench.running.supervisor import family, orphan_reaper, program, scratch, templates
from nsabench.running.supervisor.log import Log
from nsabench.running.supervisor.loss import (
    WorkerBrokeProtocol,
    WorkerDied,
    WorkerFilledScratch,
    WorkerLost,
    WorkerRefused,
    WorkerTimedOut,
    WorkerTooLarge,
)
from nsabench.running.supervisor.program import Program
from nsabench.worker.protocol import GO, Refused, Step
from nsabench.worker.template import MAILBOX

START_TIMEOUT_S = 180.0  # importing torch and creating a CUDA context on a slow disk
TERM_GRACE_S = 2.0
REAP_S = 10.0
READ_TIMEOUT_S = 20.0  # of a worker that has answered and has nothing to do but to read
POLL_S = 0.25
# RLIMIT_NPROC does not hold root. A compiler starts one for each core, now and then.
MOST_PROCESSES = 64 + 4 * (os.cpu_count() or 1)
MAX_REPLY_BYTES = 64 << 20
READ_BYTES = 1 << 16
MOST_PRINTED_BYTES = 1 << 20  # that lie in a pipe, unless root has made it larger
MAX_STEPS = 1000
MAX_ALLOWANCE = 64.0
# On average; three steps are of all implementations of a case together, the others of one.
ALLOWANCE_EACH = 2.0
REFUSALS = (1, 2, 3)  # exit codes a worker may ask for
PR_SET_CHILD_SUBREAPER = 36

_workers: set[int] = set()
# Workers may be started by several threads: one that is born must not be taken for an orphan.
_births = threading.Lock()


_reaper: subprocess.Popen[bytes] | None = None


class WorkerProcess:
    """A worker in a session (process group) of its own."""

    def __init__(self, runs: Program, *, memory_limit_bytes: int | None = None) -> None:
        _adopt_orphans()
        _start_reaper()
        self._replies = runs.replies
        self._siblings = family.children(os.getpid())
        self._born = time.time()
        with _births:
            self._process = _start(runs)
            _workers.add(self.pid)
        _tell_reaper(f"+{self.pid}")
        # What answers without it is not the worker: foreign code wrote on the worker's descriptor.
        self._nonce = token_hex(16).encode()
        assert self._process.stdin is not None
        # A pipe that nobody reads fills up, and whoever waits for room in it waits for ever.
        os.set_blocking(self._process.stdin.fileno(), False)
        with contextlib.suppress(BrokenPipeError):  # it died; the first request will say so
            self._process.stdin.write(self._nonce + b"\n")
        self._answered = False
        self.log = Log()
        self._step = Step(phase="start")
        self._memory_limit = memory_limit_bytes or int(psutil.virtual_memory().available * 0.85)
        self._weighed_at = time.monotonic()
        self._scratch = runs.scratch
        self._buffer = bytearray()
        # The kernel's out-of-memory killer, if it comes to that, must not pick the supervisor.
        with contextlib.suppress(OSError):
            Path(f"/proc/{self.pid}/oom_score_adj").write_text("1000")
        assert self._process.stderr is not None
        os.set_blocking(self._process.stderr.fileno(), False)  # of this end alone
        self._printed = threading.Lock()
        self._drain = threading.Thread(target=self._drain_stderr, daemon=True)
        self._drain.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(
        self, request: Message, limit_s: float, *, max_steps: int = MAX_STEPS
    ) -> Iterator[Message]:
        """Send a request and yield the replies up to and including the one that answers it.

        `limit_s` bounds each step, times the step's own allowance; `max_steps` bounds their number,
        or a loop that reports steps would never time out, and so, times `ALLOWANCE_EACH`, the sum
        of their allowances. Raises a `WorkerLost` when the worker
        goes, or `WorkerRefused` before foreign code was called.
        """
        step_limit = max(START_TIMEOUT_S, limit_s)
        if self._answered:  # it has nothing to do but to read
            self._step = Step(
                phase="request", implementation=getattr(request, "implementation", "")
            )
        try:
            line = request.model_dump_json().encode() + b"\n"
            self._write(line, READ_TIMEOUT_S if self._answered else step_limit)
        except BrokenPipeError:
            raise self._died() from None
        self._step = Step(phase="start")
        steps, allowances = 0, ALLOWANCE_EACH * max_steps
        left_s = step_limit
        while True:
            asked = time.monotonic()
            reply = self._receive(left_s)
            left_s -= time.monotonic() - asked  # deliveries do not begin a step's time anew
            if isinstance(reply, Step):
                steps += 1
                if steps > max_steps:
                    raise self._broke(f"reported more than {max_steps} steps")
                self._step = reply
                if reply.phase != "start":
                    allowances -= reply.allowance
                    if not allowances >= 0:
                        raise self._broke("asked for more time than its work can take")
                    step_limit = limit_s * min(reply.allowance, MAX_ALLOWANCE)
                left_s = step_limit
            elif isinstance(reply, Refused):
                if self._step.phase != "start" or reply.exit_code not in REFUSALS:
                    raise self._broke("sent a refusal in the middle of measuring")
                self.stop()
                raise WorkerRefused(reply.sentence, reply.remedy, reply.exit_code)
            # Before the caller stops listening.
            self._answered = not isinstance(reply, Step | Delivery)
            if self._answered:
                self._take_printed()
            yield reply
            if self._answered:
                return
            if isinstance(reply, Step) and reply.awaits:
                with contextlib.suppress(BrokenPipeError):  # it died; what comes next says how
                    self._write(GO, step_limit)

    def tell(self, message: Message) -> None:
        """Answer a delivery, before the next reply is asked for."""
        with contextlib.suppress(BrokenPipeError):  # it died; what comes next says how
            self._write(message.model_dump_json().encode() + b"\n", READ_TIMEOUT_S)

    def _write(self, data: bytes, limit_s: float) -> None:
        """Raises `WorkerTimedOut` when the worker does not read it, or `BrokenPipeError`."""
        assert self._process.stdin is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdin, selectors.EVENT_WRITE)
            while data:
                data = data[self._process.stdin.write(data) or 0 :]
                if data and time.monotonic() >= deadline:
                    self.stop()
                    raise WorkerTimedOut(self._step, limit_s)
                selector.select(POLL_S if data else 0)

    def _receive(self, limit_s: float) -> Message:
        assert self._process.stdout is not None
        deadline = time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stdout, selectors.EVENT_READ)
            while b"\n" not in self._buffer:
                now = time.monotonic()
                left = deadline - now
                if left <= 0:
                    self.stop()
                    raise WorkerTimedOut(self._step, limit_s)
                if now - self._weighed_at >= POLL_S:  # it takes milliseconds
                    self._weighed_at = now
                    self._refuse_excess()
                if not selector.select(min(left, POLL_S)):
                    continue
                data = os.read(self._process.stdout.fileno(), 1 << 20)
                if not data:
                    raise self._died()
                if len(self._buffer) > MAX_REPLY_BYTES:
                    raise self._broke(f"sent more than {MAX_REPLY_BYTES >> 20} MiB in one answer")
                self._buffer += data
        line, _, rest = self._buffer.partition(b"\n")
        self._buffer = bytearray(rest)
        nonce, _, content = bytes(line).partition(b" ")
        try:
            if nonce != self._nonce:
                raise ValueError("not of the worker")
            reply: Message = self._replies.validate_json(content)
            return reply
        except ValueError:
            # Foreign code wrote on our descriptor: nothing this process says counts any more.
            self.log.write(b"\n[nsabench] the worker sent: " + bytes(line[:500]) + b"\n")
            raise self._broke("wrote on the descriptor of the worker's answers") from None

    def _broke(
        self, how: str, lost: type[WorkerBrokeProtocol] = WorkerBrokeProtocol
    ) -> WorkerBrokeProtocol:
        self.stop()
        self._drain.join(TERM_GRACE_S)
        return lost(self._step, how, self.log.text())

    def _died(self) -> WorkerLost:
        try:
            returncode = self._process.wait(TERM_GRACE_S)
        except subprocess.TimeoutExpired:
            return self._broke("closed the descriptor of the worker's answers and went on")
        self.stop()
        self._drain.join(TERM_GRACE_S)
        return WorkerDied(self._step, returncode, self.log.text())

    def _refuse_excess(self) -> None:
        """Raises a `WorkerLost` when it takes more of the machine than it may."""
        if len(self._started()) > MOST_PROCESSES:
            raise self._broke(f"started more than {MOST_PROCESSES} processes")
        if family.takes_more(self.pid, self._memory_limit):
            self.stop()
            raise WorkerTooLarge(self._step, self._memory_limit)
        walks = self._scratch and scratch.begins_walk(self._scratch)
        if walks and scratch.holds_more(Path(self._scratch)):
            how = f"wrote more than {scratch.LIMIT} to its scratch"
            raise self._broke(how, WorkerFilledScratch)

    def children(self) -> list[psutil.Process]:
        """Processes the worker started and left."""
        return [p for p in family.family(self.pid) if p.pid != self.pid]

    def _started(self) -> set[int]:
        orphans = {orphan.pid for orphan in _orphans(self._siblings, self._born)}
        return orphans.union(*map(family.descendants, (self.pid, *orphans)))

    def _drain_stderr(self) -> None:
        assert self._process.stderr is not None
        with selectors.DefaultSelector() as selector:
            selector.register(self._process.stderr, selectors.EVENT_READ)
            while self._take_printed():
                selector.select()

    def _take_printed(self) -> bool:
        """Take into the log what lies in the pipe by now; whether more may come. What was printed
        before an answer is in the log once the answer is there, and not in that of the next."""
        assert self._process.stderr is not None
        with self._printed:
            for _ in range(MOST_PRINTED_BYTES // READ_BYTES):
                try:
                    data = os.read(self._process.stderr.fileno(), READ_BYTES)
                except BlockingIOError:
                    break
                if not data:
                    return False
                self.log.write(data)
        return True

    def kill(self) -> None:
        """End its process group at once: whoever waits for its answer finds it lost, and stops it.
        Any thread."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> None:
        """End the worker, its process group and all its descendants: TERM, then KILL."""
        left = family.family(self.pid)
        for signum, grace in ((signal.SIGTERM, TERM_GRACE_S), (signal.SIGKILL, TERM_GRACE_S)):
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signum)
            for process in left:
                with contextlib.suppress(psutil.Error):
                    process.send_signal(signum)
            if self._process.poll() is not None and not family.alive(left):
                break
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace)
            left = psutil.wait_procs(family.alive(left), grace)[1]
        _workers.discard(self.pid)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            stream.close()
        reap_orphans(self._siblings, self._born)
        _tell_reaper(f"-{self.pid}")


def _start(runs: Program) -> templates.ForkedProcess | subprocess.Popen[bytes]:
    """Fork a worker, or start one the long way where that cannot be done."""
    arguments = [*runs.options, "--parent", str(os.getpid())]

    def with_mailbox(number: int | None) -> list[str]:
        return arguments if runs.mailbox is None else [*arguments, "--mailbox", str(number)]

    try:
        forked = with_mailbox(MAILBOX)
        return templates.fork(runs.module, forked, runs.environment, runs.mailbox)
    except templates.NoTemplate:
        return subprocess.Popen(
            [sys.executable, "-m", runs.module, *with_mailbox(runs.mailbox)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(runs.environment),
            bufsize=0,
            pass_fds=[] if runs.mailbox is None else [runs.mailbox],
        )


def _adopt_orphans() -> None:
    """Have descendants that lose their parent given to this process, so that none gets away."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


def _start_reaper() -> None:
    """Have somebody who ends the workers' children if this process is killed."""
    global _reaper
    with _births:
        if _reaper is None or _reaper.poll() is not None:
            _reaper = subprocess.Popen(
                [
                    sys.executable,
                    "-S",
                    str(orphan_reaper.__file__),
                    f"{program.MARK}={program.mark}",
                ],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
                bufsize=0,
            )
            for pid in _workers:
                _tell_reaper(f"+{pid}")


def _tell_reaper(line: str) -> None:
    assert _reaper is not None and _reaper.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # the next worker finds it dead and starts another
        _reaper.stdin.write(line.encode() + b"\n")


def own() -> set[int]:
    """The workers that are there now, and what they are forked from. What a worker starts is none
    of ours: on the device it takes from who is timed there."""
    with _births:
        return _workers | templates.pids()


def reap_orphans(siblings: set[int], born: float) -> None:
    """Kill what a worker left behind: children given to us since it was born, by whole groups.

    More than once, since they may fork meanwhile; bounded, since the kernel may hold one.
    """
    deadline = time.monotonic() + REAP_S
    while (orphans := _orphans(siblings, born)) and time.monotonic() < deadline:
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
        ours = _workers | templates.pids() | siblings | ({_reaper.pid} if _reaper else set())
        children = [c for pid in family.children(os.getpid()) - ours for c in _of(pid)]
    return [child for child in children if _left_behind(child, born)]


def _of(pid: int) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        yield psutil.Process(pid)


def _left_behind(child: psutil.Process, born: float) -> bool:
    """Whether it carries the mark, or none that can be read (an environment of its own, or one
    it hides) in a session that is not ours, which what this program starts itself is not.
    """
    try:
        foreign = child.create_time() >= born - 1 and os.getsid(child.pid) != os.getsid(0)
        return foreign or child.environ().get(program.MARK) == program.mark
    except (psutil.Error, ProcessLookupError):  # it is gone, or made itself unreadable
        return False
