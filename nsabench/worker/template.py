"""The process that workers are forked from. It imports what every worker needs, nothing foreign.

To import torch takes seconds, to fork this process 0.05 s. It has one thread and no CUDA context,
since neither survives a fork. The supervisor adopts its grandchildren.
"""

from __future__ import annotations

import argparse
import array  # noqa: F401 - recv_fds imports it when it is first used
import gc
import importlib
import json
import os
import runpy
import socket
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from nsabench.channel import die_with
from nsabench.worker.timing import timer

IMPORTED = (
    *("torch", "triton", "triton.language"),
    *("nsabench.worker.session", "nsabench.worker.timing.ceilings"),
    "nsabench.registry.validation",
    *("nsabench.checker.judge", "nsabench.checker.diagnosis"),
)
MAX_REQUEST_BYTES = 1 << 17
STREAMS = 3  # stdin, stdout and stderr of a worker
MAILBOX = 64  # the number of a fourth descriptor
ADOPTION_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.worker.template")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=int, required=True)
    options = parser.parse_args()
    die_with(options.parent)
    import_all()
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0"):  # its workers measure on the CPU
        timer.flush()
    if sum(1 for _ in Path("/proc/self/task").iterdir()) != 1:
        raise SystemExit("a library has started threads, which do not survive a fork")
    gc.collect()
    gc.freeze()  # pages of what is imported stay shared with every worker
    with socket.socket(fileno=options.socket) as supervisor:
        supervisor.send(b"{}")
        worker = _serve(supervisor, options.parent)
    if worker is not None:
        module, arguments = worker
        sys.argv = [module, *arguments]
        runpy.run_module(module, run_name="__main__", alter_sys=True)


def import_all() -> None:
    for name in IMPORTED:
        importlib.import_module(name)
    from nsabench import ops

    for name in ops.shipped():
        ops.get(name)


def _serve(supervisor: socket.socket, parent: int) -> tuple[str, list[str]] | None:
    """Fork workers until the supervisor hangs up. In a worker, return what it has to run."""
    while True:
        message, streams, _, _ = socket.recv_fds(supervisor, MAX_REQUEST_BYTES, STREAMS + 1)
        if not message:
            return None
        child = os.fork()
        if child:
            os.waitpid(child, 0)
            for stream in streams:
                os.close(stream)
            continue
        if os.fork():
            os._exit(0)
        request = json.loads(message)
        _become_worker(streams, parent, request["directory"])
        supervisor.send(json.dumps({"pid": os.getpid()}).encode())
        return request["module"], request["arguments"]


def _become_worker(streams: Sequence[int], parent: int, directory: str) -> None:
    os.setsid()
    for number, stream in zip((*range(STREAMS), MAILBOX), streams, strict=False):
        os.dup2(stream, number, inheritable=number < STREAMS)
        os.close(stream)
    os.chdir(directory)
    end = time.monotonic() + ADOPTION_S
    while os.getppid() != parent and time.monotonic() < end:
        time.sleep(1e-3)
    die_with(parent)


if __name__ == "__main__":
    main()
