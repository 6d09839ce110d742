"""Say what a worker runs: a module that answers requests, its options and its environment."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from nsabench.model.plan import Device
from nsabench.signing.secrecy import is_secret
from nsabench.worker.protocol import REPLY, Sandbox

# Everything that a worker starts inherits it, so its orphans can be told from other children.
MARK = "NSABENCH_WORKER_OF"
mark = f"{os.getpid()}-{time.monotonic_ns()}"


@dataclass(frozen=True)
class Program:
    """mailbox: memory for outputs."""

    module: str
    options: Sequence[str]
    environment: Mapping[str, str]
    replies: TypeAdapter[Any] = REPLY
    mailbox: int | None = None


def measuring(
    device: Device,
    kernels: Path | None,
    sources: Mapping[str, str] | None = None,
    ops_file: Path | None = None,
    sandbox: Sandbox | None = None,
    mailbox: int | None = None,
) -> Program:
    """sources: those that the worker imports, and refuses if changed."""
    options = ["--device", device]
    if kernels is not None:
        options += ["--kernels", str(kernels)]
    if ops_file is not None:
        options += ["--ops", str(ops_file)]
    if sources is not None:
        options += ["--sources", json.dumps(sources)]
    if sandbox is not None:
        options += ["--sandbox", sandbox.model_dump_json()]
    return Program(
        "nsabench.worker",
        options,
        worker_environment(device),
        mailbox=mailbox,
    )


def worker_environment(device: Device) -> dict[str, str]:
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
