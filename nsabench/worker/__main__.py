"""Run a worker, or the template from which workers are forked.

A worker reads requests on stdin and answers on the former stdout. The template has imported what
every worker needs, but no foreign code: importing torch takes seconds, a fork 0.05 s. A fork loses
other threads and a CUDA context, so the template has neither. The supervisor, the process that asks
for workers, becomes their parent.
"""

from __future__ import annotations

import argparse
import array  # noqa: F401 - the first call of recv_fds would import it
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
from typing import TYPE_CHECKING

from nsabench.channel import Channel, Refused, Step, die_with
from nsabench.delivery import MAILBOX, Mailbox
from nsabench.errors import NsabenchError
from nsabench.failure import DeviceLost
from nsabench.worker import sandbox
from nsabench.worker.protocol import REQUEST, Describe, LostDevice, Sandbox
from nsabench.worker.timing import timer

if TYPE_CHECKING:
    from nsabench.worker.session import WorkerSession

IMPORTED = (
    *("torch", "triton", "triton.language"),
    *("nsabench.worker.session", "nsabench.worker.timing.ceilings"),
    "nsabench.registry.validation",
    *("nsabench.checker.judge", "nsabench.checker.diagnosis"),
)
MAX_REQUEST_BYTES = 1 << 17
STREAMS = 3  # stdin, stdout and stderr of a worker
ADOPTION_S = 10.0


def main() -> None:
    parser = argparse.ArgumentParser(prog="nsabench.worker")
    parser.add_argument("--parent", type=int, required=True)
    parser.add_argument("--socket", type=int, help="socket on which a template gets its requests")
    parser.add_argument("--device", choices=["cuda", "cpu"])
    parser.add_argument("--kernels", type=Path)
    parser.add_argument("--ops", type=Path)
    parser.add_argument("--sources", type=json.loads)
    parser.add_argument("--sandbox", type=Sandbox.model_validate_json)
    parser.add_argument("--mailbox", type=int)
    options = parser.parse_args()
    if options.socket is not None:
        run_template(options.parent, options.socket)
    else:
        run_worker(options)


def run_worker(options: argparse.Namespace) -> None:
    channel = Channel.claim_stdout()
    die_with(options.parent)
    if options.sandbox is not None:
        sandbox.enter(options.sandbox)
    channel.send(Step(phase="start"))
    try:
        _answer_requests(options, channel)
    except NsabenchError as error:
        channel.send(Refused.from_error(error))
    except DeviceLost as lost:
        channel.send(LostDevice(implementation=lost.implementation, reason=str(lost)))
        raise SystemExit(1) from lost


def _answer_requests(options: argparse.Namespace, channel: Channel) -> None:
    session: WorkerSession | None = None
    for line in sys.stdin.buffer:
        request = REQUEST.validate_json(line)
        if isinstance(request, Describe):
            from nsabench.machine.environment import torch_probe  # works without torch

            described = torch_probe.describe(options.device)
            channel.send(described.model_copy(update={"sandbox": sandbox.restrictions()}))
            continue
        if session is None:
            from nsabench.worker.session import WorkerSession

            own = options.mailbox
            mailbox = None if own is None else Mailbox(own, options.device)
            session = WorkerSession(
                options.device, options.kernels, options.ops, options.sources, channel, mailbox
            )
        channel.send(session.answer(request))


def run_template(parent: int, descriptor: int) -> None:
    """Fork workers and checkers when the supervisor asks for them on the socket `descriptor`."""
    die_with(parent)
    import_all()
    if not os.environ.get("CUDA_VISIBLE_DEVICES", "0"):
        timer.flush()  # makes the array that CPU workers share
    if sum(1 for _ in Path("/proc/self/task").iterdir()) != 1:
        raise SystemExit("a library has started threads, which do not survive a fork")
    gc.collect()
    gc.freeze()  # keeps the memory of imported modules shared with the workers
    with socket.socket(fileno=descriptor) as supervisor:
        supervisor.send(b"{}")
        worker = _fork_workers(supervisor, parent)
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


def _fork_workers(supervisor: socket.socket, parent: int) -> tuple[str, list[str]] | None:
    """Fork workers until the supervisor closes the socket. In a worker, return what to run."""
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
