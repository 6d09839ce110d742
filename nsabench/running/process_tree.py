"""Start processes that answer requests. Find and end all processes that these have started.

A process is forked, if possible, from a template that has imported torch, and else started anew.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import psutil
from pydantic import TypeAdapter

from nsabench.delivery import MAILBOX
from nsabench.model.plan import Device
from nsabench.signing.secrecy import is_secret
from nsabench.worker.protocol import REPLY

START_TIMEOUT_S = 180.0  # the time to import torch from a slow disk
FORK_TIMEOUT_S = 20.0
TEMPLATE = ("-P", "-m", "nsabench.worker")  # -P: import nothing from the current folder
MOST_TEMPLATES = 2  # each takes some 300 MB
POLL_S = 0.01
# All descendants of a worker inherit this variable, which tells orphans from other children.
MARK = "NSABENCH_WORKER_OF"
mark = f"{os.getpid()}-{time.monotonic_ns()}"
REAP_S = 10.0
KILL_S = 2.0  # the time that killed orphans have to end
PR_SET_CHILD_SUBREAPER = 36
# Whether Linux lists the children of a process. If not, all processes are searched, more slowly.
_LISTED = Path("/proc/thread-self/children").exists()

_workers: set[int] = set()
# Several threads start workers. A new worker must not be taken for an orphan.
_births = threading.Lock()


@dataclass(frozen=True)
class Program:
    """A module that answers requests. `mailbox` is the descriptor of the memory for outputs."""

    module: str
    options: Sequence[str]
    environment: Mapping[str, str]
    replies: TypeAdapter[Any] = REPLY
    mailbox: int | None = None
    is_forked: bool = True  # from a warm template, if possible


def make_environment(device: Device) -> dict[str, str]:
    env = dict(os.environ)
    env.pop("PYTEST_CURRENT_TEST", None)  # each test would need a template of its own
    env["PYTHONUNBUFFERED"] = "1"
    env.setdefault("OPENBLAS_NUM_THREADS", "1")  # a pool of threads would not survive a fork
    env[MARK] = mark
    # A pool of compile processes would compete with the calls that are timed.
    env.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")
    if device == "cpu":
        env["CUDA_VISIBLE_DEVICES"] = ""
        env["TRITON_INTERPRET"] = "1"
    else:
        env.pop("TRITON_INTERPRET", None)  # interpreted kernels must never be timed
    return {name: value for name, value in env.items() if not is_secret(name)}


@dataclass
class ForkedProcess:
    """A process that a template forked, with methods of `subprocess.Popen`."""

    pid: int
    stdin: IO[bytes]
    stdout: IO[bytes]
    stderr: IO[bytes]
    returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            try:
                pid, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:  # something else has waited for it
                self.returncode = 0
            else:
                if pid:
                    self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() >= end:
                raise subprocess.TimeoutExpired(f"worker {self.pid}", timeout)
            time.sleep(POLL_S)
        return code


def start(program: Program) -> ForkedProcess | subprocess.Popen[bytes]:
    options = [*program.options, "--parent", str(os.getpid())]
    try:
        return _fork(program, options)
    except NoTemplate:
        handed = [] if program.mailbox is None else [program.mailbox]
        options += [f"--mailbox={descriptor}" for descriptor in handed]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", program.module, *options],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
            env=dict(program.environment),
            bufsize=0,
            pass_fds=handed,
        )


class NoTemplate(Exception):
    """A process cannot be forked here."""


class Template:
    """A process that forks workers and checkers. Making one, or forking, may raise `NoTemplate`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start_template(environment, theirs)
        self.pid = self._process.pid
        self._receive(START_TIMEOUT_S)

    def fork(self, program: Program, options: Sequence[str]) -> ForkedProcess:
        handed = [] if program.mailbox is None else [program.mailbox]
        arguments = [*options, *(f"--mailbox={MAILBOX}" for _ in handed)]
        request = {"module": program.module, "arguments": arguments, "directory": str(Path.cwd())}
        (in_theirs, in_ours), (out_ours, out_theirs), (err_ours, err_theirs) = (
            os.pipe() for _ in range(3)
        )
        theirs = (in_theirs, out_theirs, err_theirs)
        try:
            content = json.dumps(request).encode()
            socket.send_fds(self._socket, [content], [*theirs, *handed])
            pid = self._receive(FORK_TIMEOUT_S)["pid"]
        except (OSError, KeyError, NoTemplate) as error:
            for descriptor in (in_ours, out_ours, err_ours):
                os.close(descriptor)
            self.stop()
            raise NoTemplate(str(error)) from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        stdin = os.fdopen(in_ours, "wb", buffering=0)
        stdout, stderr = (os.fdopen(ours, "rb", buffering=0) for ours in (out_ours, err_ours))
        return ForkedProcess(pid, stdin, stdout, stderr)

    def _receive(self, limit_s: float) -> dict[str, Any]:
        if not select.select([self._socket], [], [], limit_s)[0]:
            self.stop()
            raise NoTemplate("it does not answer")
        try:
            answer: dict[str, Any] = json.loads(self._socket.recv(1 << 12) or b"null") or {}
        except (OSError, ValueError) as error:
            self.stop()
            raise NoTemplate(str(error)) from error
        if self._process.poll() is not None:
            raise NoTemplate("it ended")
        return answer

    def stop(self) -> None:
        self._socket.close()
        self._process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(FORK_TIMEOUT_S)


def start_template(environment: Mapping[str, str], ask: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, *TEMPLATE]
    command += ["--parent", str(os.getpid()), "--socket", str(ask.fileno())]
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
        env=dict(environment),
        pass_fds=[ask.fileno()],
    )


_templates: dict[frozenset[tuple[str, str]], Template] = {}
# Environments whose templates end or do not start. To try again would cost each process seconds.
_hopeless: set[frozenset[tuple[str, str]]] = set()


def _fork(program: Program, options: Sequence[str]) -> ForkedProcess:
    """Fork a process. Raises `NoTemplate` if no template starts or two end, then and ever after."""
    key = frozenset(program.environment.items())
    if key in _hopeless or not program.is_forked:
        raise NoTemplate("it is not forked, or ended at every request")
    template = _templates.pop(key, None)
    for _ in range(2):
        try:
            template = template or Template(program.environment)
        except NoTemplate:
            break
        try:
            forked = template.fork(program, options)
        except NoTemplate:
            template = None
            continue
        _templates[key] = template  # now the last in line to be stopped
        while len(_templates) > MOST_TEMPLATES:
            _templates.pop(next(iter(_templates))).stop()
        return forked
    _hopeless.add(key)
    raise NoTemplate("it does not start, or ends at every request")


def template_pids() -> set[int]:
    return {template.pid for template in _templates.values()}


def start_worker(program: Program) -> ForkedProcess | subprocess.Popen[bytes]:
    with _births:
        process = start(program)
        _workers.add(process.pid)
    return process


def forget_worker(pid: int) -> None:
    _workers.discard(pid)


def list_own() -> set[int]:
    with _births:
        return _workers | template_pids()


def adopt_orphans() -> None:
    """Become the parent of all descendants that lose their parent, so that none escapes."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1)


class Orphans:
    """The processes that this process adopts after this object was made."""

    def __init__(self) -> None:
        adopt_orphans()
        self._siblings = list_children(os.getpid())
        self._born = time.time()

    def find(self) -> list[psutil.Process]:
        with _births:
            ours = _workers | template_pids() | self._siblings
            children = _open(list_children(os.getpid()) - ours)
        return [child for child in children if self._was_left_behind(child)]

    def _was_left_behind(self, child: psutil.Process) -> bool:
        try:
            is_new = child.create_time() >= self._born - 1
            # A process that removes the mark is still in another session than this one.
            is_apart = is_new and os.getsid(child.pid) != os.getsid(0)
            return is_apart or child.environ().get(MARK) == mark
        except (psutil.Error, ProcessLookupError):  # it has ended, or made itself unreadable
            return False

    def kill(self) -> None:
        """Kill the orphans by whole process groups, since they may fork meanwhile."""
        ends = time.monotonic() + REAP_S
        while (orphans := self.find()) and time.monotonic() < ends:
            for orphan in orphans:
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    group = os.getpgid(orphan.pid)
                    if group not in _workers | {os.getpgid(0)}:
                        os.killpg(group, signal.SIGKILL)
                for process in list_family(orphan.pid):
                    with contextlib.suppress(psutil.Error):
                        process.kill()
            psutil.wait_procs(orphans, KILL_S)


def list_family(pid: int) -> list[psutil.Process]:
    return _open((pid, *list_descendants(pid)))


def list_descendants(pid: int) -> set[int]:
    pids: set[int] = set()
    new = list_children(pid)
    while new:
        pids |= new
        new = set().union(*map(list_children, new)) - pids
    return pids


def list_children(pid: int) -> set[int]:
    pids: set[int] = set()
    if not _LISTED:
        with contextlib.suppress(psutil.Error):
            pids.update(child.pid for child in psutil.Process(pid).children())
        return pids
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # the process has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                pids.update(map(int, (thread / "children").read_bytes().split()))
    return pids


def _open(pids: Iterable[int]) -> list[psutil.Process]:
    existing = []
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            existing.append(psutil.Process(pid))
    return existing


def select_alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    living = []
    for process in processes:
        with contextlib.suppress(psutil.Error):
            if process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                living.append(process)
    return living


def takes_more(pid: int, limit_bytes: int) -> bool:
    members = list_family(pid)
    # Resident sizes count shared pages in each process. To count shared pages once takes longer, so
    # it is done only if the resident sizes exceed the limit.
    resident = shared_once = 0
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            resident += process.memory_info().rss
    if resident <= limit_bytes:
        return False
    for process in members:
        with contextlib.suppress(psutil.NoSuchProcess):
            try:
                shared_once += process.memory_full_info().pss
            except psutil.AccessDenied:  # a process can forbid that its pages are counted
                shared_once += process.memory_info().rss
    return shared_once > limit_bytes
