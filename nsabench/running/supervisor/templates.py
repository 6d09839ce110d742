"""Fork workers: the supervisor's side of `worker/template.py`."""

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
from pathlib import Path
from typing import IO, Any

START_TIMEOUT_S = 180.0  # importing torch on a slow disk
FORK_TIMEOUT_S = 20.0
PROGRAM = ("-P", "-m", "nsabench.worker.template")  # -P: import nothing from the current folder
MOST_TEMPLATES = 2  # each takes some 300 MB
WAIT_S = 0.01


class NoTemplate(Exception):
    """A worker cannot be forked here."""


class ForkedProcess:
    """A process that was forked elsewhere and adopted, with methods of `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes], stdout: IO[bytes], stderr: IO[bytes]) -> None:
        self.pid = pid
        self.stdin = stdin
        self.stdout = stdout
        self.stderr = stderr
        self.returncode: int | None = None

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


def start(environment: Mapping[str, str], ask: socket.socket) -> subprocess.Popen[bytes]:
    command = [sys.executable, *PROGRAM]
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


class Template:
    """A process that forks workers with its environment. All methods may raise `NoTemplate`."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._socket, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = start(environment, theirs)
        self._answer(START_TIMEOUT_S)

    @property
    def pid(self) -> int:
        return self._process.pid

    def fork(self, module: str, arguments: Sequence[str], mailbox: int | None) -> ForkedProcess:
        """mailbox: a descriptor that the worker gets under the number `MAILBOX`."""
        request = {"module": module, "arguments": list(arguments), "directory": str(Path.cwd())}
        (in_theirs, in_ours), (out_ours, out_theirs), (err_ours, err_theirs) = (
            os.pipe() for _ in range(3)
        )
        ours, theirs = (in_ours, out_ours, err_ours), (in_theirs, out_theirs, err_theirs)
        try:
            handed = [*theirs, *([] if mailbox is None else [mailbox])]
            socket.send_fds(self._socket, [json.dumps(request).encode()], handed)
            pid = self._answer(FORK_TIMEOUT_S)["pid"]
        except (OSError, KeyError, NoTemplate) as error:
            for descriptor in ours:
                os.close(descriptor)
            self.stop()
            raise NoTemplate(str(error)) from error
        finally:
            for descriptor in theirs:
                os.close(descriptor)
        stdin = os.fdopen(in_ours, "wb", buffering=0)
        stdout, stderr = (os.fdopen(ours, "rb", buffering=0) for ours in (out_ours, err_ours))
        return ForkedProcess(pid, stdin, stdout, stderr)

    def _answer(self, limit_s: float) -> dict[str, Any]:
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


_templates: dict[frozenset[tuple[str, str]], Template] = {}
# Environments whose templates end or do not start. Each worker would wait seconds for one.
_hopeless: set[frozenset[tuple[str, str]]] = set()


def fork(
    module: str,
    arguments: Sequence[str],
    environment: Mapping[str, str],
    mailbox: int | None = None,
) -> ForkedProcess:
    """Raises `NoTemplate` if a new template fails as well, and at once in later calls."""
    key = frozenset(environment.items())
    if key in _hopeless:
        raise NoTemplate("it ended whenever it was asked")
    template = _templates.pop(key, None)
    for _ in range(2):
        try:
            template = template or Template(environment)
        except NoTemplate:
            break
        try:
            forked = template.fork(module, arguments, mailbox)
        except NoTemplate:
            template = None
            continue
        _templates[key] = template  # now the last to be stopped
        while len(_templates) > MOST_TEMPLATES:
            _templates.pop(next(iter(_templates))).stop()
        return forked
    _hopeless.add(key)
    raise NoTemplate("it does not come up, or ends whenever it is asked")


def pids() -> set[int]:
    return {template.pid for template in _templates.values()}
