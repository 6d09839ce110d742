"""Fork commands, and templates of workers, from a process that has imported torch.

A template is the process from which a run forks its workers. Without this module, imports would
take most of the time of a short command or run. `tests.origin` is the process that is forked. Each
fork has its own environment, folder and streams. If an environment holds secrets, or changes a
variable that is read on import or at the start of Python, a new process is started instead.
"""

import atexit
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from functools import cache
from pathlib import Path

from nsabench.machine import cpu_caches
from nsabench.running import process_tree
from nsabench.running.process_tree import ForkedProcess, NoTemplate
from nsabench.signing.secrecy import is_secret

MOST_BYTES = 1 << 17  # of a message
READ_AT_START = ("PYTHON", "LD_", "LANG", "LC_")
# Prefixes of variables that torch, Triton and their dependencies read when they are imported.
READ_ON_IMPORT = ("CUDA", "OMP_", "MKL_", "KMP_", "OPENBLAS", "TORCH", "PYTORCH", "TRITON", "HF_")
# Inductor sets it when it first compiles, and reads it whenever it compiles.
READ_LATER = ("TORCHINDUCTOR_CACHE_DIR",)
START_S = 180.0
SHIM = """#!{python} -IS
import json, os, signal, socket, sys

request = {{"arguments": sys.argv[1:], "folder": os.getcwd(), "environment": dict(os.environ)}}
with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as asks:
    try:
        asks.connect({address!r})
        socket.send_fds(asks, [json.dumps(request).encode()], [0, 1, 2])
        pid = json.loads(asks.recv(4096) or b'{{"pid": 0}}')["pid"]
    except OSError:  # the origin is gone
        pid = 0
    if not pid:
        os.execv({python!r}, [{python!r}, "-m", "nsabench", *sys.argv[1:]])
    signal.signal(signal.SIGINT, lambda *_: os.kill(pid, signal.SIGINT))
    signal.signal(signal.SIGTERM, lambda *_: os.kill(pid, signal.SIGTERM))
    code = json.loads(asks.recv(4096))["code"]
if code < 0:
    if -code != signal.SIGKILL:
        signal.signal(-code, signal.SIG_DFL)
    os.kill(os.getpid(), -code)
sys.exit(code)
"""
started = process_tree.start_template
# For `process_tree.TEMPLATE`: a template that is started flushes as few bytes as a forked one.
TEMPLATE = f"""
import runpy
from nsabench.worker.timing import timer
timer.last_level_bytes = lambda: {cpu_caches.LEAST_BYTES}
runpy.run_module("nsabench.worker", run_name="__main__", alter_sys=True)
"""
begun_with = dict(os.environ)
# The environment of a template for the CPU, without the variable that marks workers.
imported_with = {
    n: v for n, v in process_tree.make_environment("cpu").items() if n != process_tree.MARK
}
INTERPRETS = "TRITON_INTERPRET"
variants = (False, True)  # whether Triton was imported to compile kernels, not to interpret them


def caches_bytes():
    """Return how many bytes tests flush before a sample: the fewest that a run flushes.

    Flushing a larger cache would take a large part of a short run.
    """
    return cpu_caches.LEAST_BYTES


def run(arguments, folder, environment, timeout_s):
    """Run a command as `subprocess.run` does and capture both streams."""
    words = [sys.executable, "-m", "nsabench", *arguments]
    if not can_be_forked(environment):
        return subprocess.run(
            words, capture_output=True, text=True, timeout=timeout_s, cwd=folder, env=environment
        )
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        command = Command(arguments, folder, environment, out.fileno(), err.fileno())
        try:
            code = command.wait(timeout_s)
        finally:
            command.kill()
        out.seek(0)
        err.seek(0)
        return subprocess.CompletedProcess(words, code, out.read(), err.read())


class Command:
    """A forked command with the methods of `subprocess.Popen`, but without its streams."""

    def __init__(self, arguments, folder, environment, out=None, err=None):
        """out, err: the descriptors of its streams; None: the null device."""
        request = {"arguments": arguments, "folder": str(folder), "environment": dict(environment)}
        with Path(os.devnull).open("r+") as nothing:
            streams = (nothing.fileno() if one is None else one for one in (None, out, err))
            self._asked = _ask(request, list(streams))
        self.pid = _answer(self._asked, START_S)["pid"]
        self.returncode: int | None = None

    def wait(self, timeout=START_S):
        """Return the exit code. Raises `subprocess.TimeoutExpired`."""
        if self.returncode is None:
            try:
                self.returncode = _answer(self._asked, timeout)["code"]
            except TimeoutError:
                raise subprocess.TimeoutExpired(f"command {self.pid}", timeout) from None
            self._asked.close()
        return self.returncode

    def poll(self):
        with suppress(subprocess.TimeoutExpired):
            return self.wait(1e-3)
        return None

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)
        self.wait()


class Template(ForkedProcess):
    """A forked template of workers, which this process has adopted."""

    def __init__(self, pid):
        self.pid = pid
        self.returncode = None

    def kill(self):
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def template(environment, ask):
    """Return a new template, as `process_tree.start_template` does, but forked if possible."""
    compiles = next((one for one in variants if is_as_imported(environment, one)), None)
    if compiles is None:
        return started(environment, ask)
    process_tree.adopt_orphans()
    request = {
        "parent": os.getpid(),
        "folder": str(Path.cwd()),
        "environment": dict(environment),
    }
    with _ask(request, [ask.fileno()], compiles) as asked:
        return Template(_answer(asked, START_S)["pid"])


@cache
def shim(*, compiles=False):
    """Return the path of a program `nsabench` that forks the command and passes signals on. It is
    alone in its folder.

    compiles: its templates compile Triton kernels instead of interpreting them.
    """
    folder = Path(tempfile.mkdtemp(prefix="nsabench-forked-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    path = folder / "nsabench"
    path.write_text(SHIM.format(python=sys.executable, address=_origin(compiles)))
    path.chmod(0o755)
    return path


def can_be_forked(environment, before=begun_with):
    """Return whether a command with this environment may be forked.

    before: the environment of the origin.
    """
    return not any(map(is_secret, environment)) and not _differ(environment, before, READ_AT_START)


def is_as_imported(environment, compiles=False):
    """Return whether a template with this environment may be forked: the origin imported torch and
    Triton with the same variables."""
    return not any(map(is_secret, environment)) and not _differ(
        environment, _with(compiles), (*READ_AT_START, *READ_ON_IMPORT)
    )


def _with(compiles):
    return {n: v for n, v in imported_with.items() if not (compiles and n == INTERPRETS)}


def _differ(one, other, beginnings):
    names = {*one, *other}.difference(READ_LATER)
    changed = (name for name in names if one.get(name) != other.get(name))
    return any(name.startswith(beginnings) for name in changed)


def _ask(request, descriptors, compiles=False):
    try:
        return _asked(request, descriptors, _origin(compiles))
    except OSError:  # the origin is gone: start another one
        _origin.cache_clear()
    try:
        return _asked(request, descriptors, _origin(compiles))
    except OSError as error:
        raise NoTemplate("the process that templates are forked from is gone") from error


def _asked(request, descriptors, address):
    asked = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    try:
        asked.connect(address)
        socket.send_fds(asked, [json.dumps(request).encode()], descriptors)
    except OSError:
        asked.close()
        raise
    return asked


def _answer(asked, limit_s):
    """Return the origin's next answer. Raises `TimeoutError`."""
    asked.settimeout(limit_s)
    return json.loads(asked.recv(MOST_BYTES) or b"{}")


@cache
def _origin(compiles=False):
    """Start the origin and return the address of its socket. The origin ends with this process."""
    address = an_address()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(address)
        listener.listen()
        origin = subprocess.Popen(
            [sys.executable, "-m", "tests.origin", str(os.getpid()), str(listener.fileno())],
            cwd=Path(__file__).parents[1],
            env={**_with(compiles), "ROOM": " " * 4096},  # for variables of forks in /proc
            stdin=subprocess.DEVNULL,
            pass_fds=[listener.fileno()],
        )
    atexit.register(origin.wait, 10)
    atexit.register(origin.kill)  # called first, because it is registered last
    return address


def an_address():
    return f"\0nsabench-tests-{os.getpid()}-{time.monotonic_ns()}"


def come_from(address):
    """Set the address of the origin from which this forked process forks in turn."""
    globals()["_origin"] = lambda _compiles=False: address
    process_tree.start_template = template
    # The origin drew the inherited mark when it imported `process_tree`.
    process_tree.mark = f"{os.getpid()}-{time.monotonic_ns()}"
