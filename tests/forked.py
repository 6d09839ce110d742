"""Commands in forked processes: half of what a short command takes is what it imports.

They come from a process that has imported the command line, and nothing else: no torch and no
foreign code, as when a command begins. From there on each is a process as any other is, with an
environment, a folder and streams of its own. What only a start from nothing shows is left to that:
variables that Python reads then, and secrets, which lie in the block that a process begins with.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import runpy
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

from nsabench.signing.secrecy import is_secret

MOST_BYTES = 1 << 17  # of a request
READ_AT_START = ("PYTHON", "LD_", "LANG", "LC_")
_begun_with = dict(os.environ)


def run(
    arguments: Sequence[str], folder: Path, environment: Mapping[str, str], timeout_s: float
) -> subprocess.CompletedProcess[str]:
    """As `subprocess.run` does it, both streams captured; it begins anew where it has to."""
    words = [sys.executable, "-m", "nsabench", *arguments]
    if not _can_be_forked(environment):
        return subprocess.run(
            words, capture_output=True, text=True, timeout=timeout_s, cwd=folder, env=environment
        )
    request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        zygote = _zygote()
        socket.send_fds(zygote, [json.dumps(request).encode()], [out.fileno(), err.fileno()])
        zygote.settimeout(timeout_s)
        code = json.loads(zygote.recv(MOST_BYTES))
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


def _can_be_forked(environment: Mapping[str, str]) -> bool:
    names = {*environment, *_begun_with}
    changed = (n for n in names if environment.get(n) != _begun_with.get(n))
    return not any(map(is_secret, environment)) and not any(
        name.startswith(READ_AT_START) for name in changed
    )


@cache
def _zygote() -> socket.socket:
    """One for all tests of this process; it ends when this process does."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.forked", str(theirs.fileno())],
            cwd=Path(__file__).parents[1],
            env=_begun_with,
            stdin=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )
    atexit.register(process.wait, 10)
    atexit.register(ours.close)  # first: what is registered last is called first
    return ours


def _serve(asks: socket.socket) -> list[str] | None:
    """Fork commands until nobody asks any more. In a command: its arguments."""
    while True:
        message, streams, _, _ = socket.recv_fds(asks, MOST_BYTES, 2)
        if not message:
            return None
        child = os.fork()
        if not child:
            request = json.loads(message)
            _become(request["folder"], request["environment"], streams)
            asks.close()
            return list(request["arguments"])
        for stream in streams:
            os.close(stream)
        asks.send(json.dumps(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])).encode())


def _become(folder: str, environment: Mapping[str, str], streams: Sequence[int]) -> None:
    for number, stream in enumerate(streams, 1):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(folder)
    sys.path[0] = folder  # as `python -m` has it
    os.environ.clear()
    os.environ.update(environment)
    # What names this process is drawn when it is imported.
    program = importlib.import_module("nsabench.execution.supervisor.program")
    program.mark = f"{os.getpid()}-{time.monotonic_ns()}"


def main() -> None:
    importlib.import_module("nsabench.cli")
    assert "torch" not in sys.modules
    gc.freeze()
    with socket.socket(fileno=int(sys.argv[1])) as asks:
        arguments = _serve(asks)
    if arguments is not None:
        sys.argv = ["nsabench", *arguments]
        runpy.run_module("nsabench", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
