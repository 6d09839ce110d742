"""Start a process that answers requests: fork it from a warm template, else start it anew."""

from __future__ import annotations

import contextlib
import json
import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pydantic import TypeAdapter

from nsabench.model.plan import Device
from nsabench.signing.secrecy import is_secret
from nsabench.worker.protocol import REPLY
from nsabench.worker.template import MAILBOX

START_TIMEOUT_S = 180.0  # importing torch on a slow disk
FORK_TIMEOUT_S = 20.0
TEMPLATE = ("-P", "-m", "nsabench.worker.template")  # -P: import nothing from the current folder
MOST_TEMPLATES = 2  # each takes some 300 MB
WAIT_S = 0.01
# Everything that a process starts inherits it, so its orphans can be told from other children.
MARK = "NSABENCH_WORKER_OF"
mark = f"{os.getpid()}-{time.monotonic_ns()}"


@dataclass(frozen=True)
class Program:
    """A module with a `main` that answers requests. mailbox: memory for outputs."""

    module: str
    options: Sequence[str]
    environment: Mapping[str, str]
    replies: TypeAdapter[Any] = REPLY
    mailbox: int | None = None


def make_environment(device: Device) -> dict[str, str]:
    env = dict(os.environ)
    env.pop("PYTEST_CURRENT_TEST", None)  # it would need a template for each test
    env["PYTHONUNBUFFERED"] = "1"
    env.setdefault("OPENBLAS_NUM_THREADS", "1")  # its pool of threads would survive no fork
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
    """A process that was forked elsewhere and adopted, with methods of `subprocess.Popen`."""

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
            time.sleep(WAIT_S)
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
    """Runs `worker.template`, which forks. All methods may raise `NoTemplate`."""

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
# Environments whose templates end or do not start. Each process would wait seconds for one.
_hopeless: set[frozenset[tuple[str, str]]] = set()


def _fork(program: Program, options: Sequence[str]) -> ForkedProcess:
    """Raises `NoTemplate` if a new template fails as well, and at once in later calls."""
    key = frozenset(program.environment.items())
    if key in _hopeless:
        raise NoTemplate("it ended whenever it was asked")
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
        _templates[key] = template  # now the last to be stopped
        while len(_templates) > MOST_TEMPLATES:
            _templates.pop(next(iter(_templates))).stop()
        return forked
    _hopeless.add(key)
    raise NoTemplate("it does not come up, or ends whenever it is asked")


def template_pids() -> set[int]:
    return {template.pid for template in _templates.values()}
