"""The process from which commands and templates of workers are forked.

It has imported the command line, torch and Triton, but no kernels of a user. In a command, only
modules of the command line are visible as imported. Each command forks a process like this one,
from which its templates are forked.

    python -m tests.origin PARENT LISTENER
"""

import atexit
import ctypes
import gc
import importlib
import importlib.util
import json
import os
import runpy
import select
import signal
import socket
import struct
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from nsabench.cli._help import SUMMARIES
from tests import forked

BACKLOG = 8
ADOPTION_S = 10.0
LAST_S = 0.1  # to reap processes that die with a command
PR_SET_CHILD_SUBREAPER = 36
_hidden = {}


def main():
    """Fork on request until the parent ends."""
    begun_with = _known(os.environ)
    forked.imported_with, forked.variants = dict(os.environ), (False,)
    for name in SUMMARIES:
        importlib.import_module(f"nsabench.cli.{name}")
    of_commands = set(sys.modules)
    assert "torch" not in of_commands
    template = importlib.import_module("nsabench.worker.__main__")
    template.import_all()
    quicken_interpreter()
    template.timer.last_level_bytes = forked.caches_bytes
    template.timer.flush()
    template.die_with(int(sys.argv[1]))
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared
    listener = socket.socket(fileno=int(sys.argv[2]))
    while True:
        asks, _ = listener.accept()
        message, descriptors = b"", []
        with suppress(OSError):  # the client is gone
            message, descriptors, _, _ = socket.recv_fds(asks, forked.MOST_BYTES, 3)
        _, uid, _ = struct.unpack("3i", asks.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
        if not message or uid != os.getuid():  # the client ended early, or is another user
            asks.close()
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        request = json.loads(message)
        is_template = "parent" in request
        known = _known(request["environment"])
        if not is_template and not forked.can_be_forked(known, begun_with):
            with suppress(OSError):
                asks.send(json.dumps({"pid": 0}).encode())
        elif child := os.fork():
            if is_template:
                os.waitpid(child, 0)
        else:
            listener.close()
            if is_template:
                _become_template(asks, request, descriptors)
                _end(template.main)
            _become_command(asks, request, descriptors)
            listener = _bound()
            address = listener.getsockname().decode()
            if os.fork():
                listener.close()
                forked.come_from(address)
                _hide(set(sys.modules) - of_commands)
                sys.argv = ["nsabench", *request["arguments"]]
                _end(lambda: runpy.run_module("nsabench", run_name="__main__", alter_sys=True))
            template.die_with(os.getppid())
            _stream(os.open(os.devnull, os.O_RDWR) for _ in range(3))
            continue
        asks.close()
        for descriptor in descriptors:
            os.close(descriptor)
        _reap()


def quicken_interpreter():
    """Make Triton's interpreter faster, if this process has imported Triton to interpret
    kernels."""
    if "triton" not in sys.modules or os.environ.get(forked.INTERPRETS) != "1":
        return
    path = Path(__file__).parents[1] / "kernels" / "tests" / "quick_interpreter.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.quicken()


def _known(environment):
    """Return the environment without the variable that only workers need."""
    return {name: value for name, value in environment.items() if name != "PYTHONUNBUFFERED"}


def _become_template(asks, request, descriptors):
    """Return in a grandchild of the origin, which the client adopts as a template."""
    if os.fork():
        os._exit(0)
    end = time.monotonic() + ADOPTION_S
    while os.getppid() != request["parent"] and time.monotonic() < end:
        time.sleep(1e-3)
    with asks:
        asks.send(json.dumps({"pid": os.getpid()}).encode())
    os.setsid()
    _stream(os.open(os.devnull, os.O_RDWR) for _ in range(3))
    _begin(request)
    sys.argv = ["template", "--parent", str(request["parent"])]
    sys.argv += ["--socket", str(descriptors[0])]


def _become_command(asks, request, descriptors):
    """Return in a forked command. Its parent reports its pid and exit code, and kills it if the
    client ends."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)
    command = os.fork()
    if command:
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(OSError):
            asks.send(json.dumps({"pid": command}).encode())
        ended = os.pidfd_open(command)
        if ended not in select.select([ended, asks], [], [])[0]:  # the client is gone
            os.kill(command, signal.SIGKILL)
        code = os.waitstatus_to_exitcode(os.waitpid(command, 0)[1])
        end = time.monotonic() + LAST_S
        while _reap() and time.monotonic() < end:
            time.sleep(1e-3)
        with suppress(OSError):
            asks.send(json.dumps({"code": code}).encode())
        os._exit(0)
    asks.close()
    _stream(descriptors)
    _begin(request)


def _reap():
    """Reap children and return whether any is still alive."""
    with suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
        return True
    return False


def _end(call):
    """Call `call` and end as Python does, but without destroying modules, which takes long for
    torch."""
    code = None
    try:
        call()
    except SystemExit as exits:
        code = exits.code
        if not isinstance(code, int | None):
            raise
    threading._shutdown()
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)


def _stream(descriptors):
    for number, descriptor in enumerate(descriptors):
        if number != descriptor:
            os.dup2(descriptor, number)
            os.close(descriptor)


def _begin(request):
    os.chdir(request["folder"])
    sys.path[0] = request["folder"]  # as `python -m` has it
    os.environ.clear()
    os.environ.update(request["environment"])
    _show(request["environment"])


def _show(environment):
    """Write the environment where /proc shows it, as far as there is room."""
    mark_first = sorted(environment.items(), key=lambda item: item[0] != forked.process_tree.MARK)
    block = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in mark_first)
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[47]), int(fields[48])
    if end > start:
        ctypes.memmove(start, block[: end - start - 1].ljust(end - start, b"\0"), end - start)


def _bound():
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(forked.an_address())
    listener.listen(BACKLOG)
    return listener


def _hide(modules):
    """Remove modules from `sys.modules`, without destroying them."""
    _hidden.update((name, sys.modules.pop(name)) for name in modules)


if __name__ == "__main__":
    main()
