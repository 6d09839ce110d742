"""All GPUs of a host at once: a shard on each, in a process of its own, and one run out of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.machine.environment import nvml
from nsabench.signing import secrecy

GOOD = (0, 1)  # exit codes of a run that is complete


@dataclass(frozen=True)
class Place:
    """Where a shard is measured. variables: of the environment, which choose the device. cpus:
    those that are near it; none: any. Memory is of the node whose CPU writes to it first."""

    name: str
    variables: Mapping[str, str]
    cpus: frozenset[int] = frozenset()


def places(asked: str) -> list[Place]:
    """The GPUs that `0,1` or `all` names, by their index as `nvidia-smi` counts them.

    Raises `EnvironmentRefused` where there is no GPU, and `UsageError` when one is not there or
    named twice.
    """
    failure = nvml.failure()
    devices = [] if failure else nvml.Device.all()
    there = {i: device for device in devices if (i := device.index()) is not None}
    if not there:
        raise EnvironmentRefused(
            f"--devices {asked} needs GPUs, and this machine shows none: {failure or 'NVML has 0'}",
            "run `nsabench doctor`, or measure without --devices.",
        )
    if asked == "all":
        chosen = list(there)
    else:
        try:
            chosen = [int(part) for part in asked.split(",")]
        except ValueError:
            raise UsageError(
                f"{asked!r} names no devices", "write indices, for example 0,1, or all."
            ) from None
    lacking = [index for index in chosen if index not in there]
    if lacking or len(set(chosen)) != len(chosen):
        what = f"GPU {lacking[0]} is not there" if lacking else "a GPU is named twice"
        raise UsageError(
            f"--devices {asked}: {what}", f"name each once of {', '.join(map(str, there))}."
        )
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # as NVML counts
    ours = os.sched_getaffinity(0)
    return [
        Place(
            f"gpu {i}",
            {**order, "CUDA_VISIBLE_DEVICES": str(i)},
            there[i].cpus().intersection(ours),
        )
        for i in chosen
    ]


def measure(
    arguments: Sequence[str],
    places: Sequence[Place],
    folder: Path,
    show: Callable[[str, str], None],
) -> list[Path]:
    """Measure a shard at each place, all at once. Returns their folders, below `folder`.

    arguments: of `nsabench all`, the same for all. show: is told the place and the line, for each
    that one prints. Raises `EnvironmentRefused` when a shard did not come to its end; what is
    measured stays, and `nsabench all --resume` goes on with it. An interrupt is handed on to all.
    """
    count = len(places)
    folders = [folder / str(number) for number in range(1, count + 1)]
    processes = [
        _start([*arguments, "--shard", f"{number}/{count}", "--out", str(own)], place)
        for number, (place, own) in enumerate(zip(places, folders, strict=True), 1)
    ]
    readers = [
        Thread(target=_read, args=(process, place.name, show), daemon=True)
        for process, place in zip(processes, places, strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        codes = [process.wait() for process in processes]
    except KeyboardInterrupt:
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
        for process in processes:
            process.wait()
        raise
    finally:
        for reader in readers:
            reader.join()
    for place, own, code in zip(places, folders, codes, strict=True):
        if code not in GOOD:
            raise EnvironmentRefused(
                f"the shard on {place.name} ended with exit code {code}",
                f"see above why; `nsabench all --resume {own}` goes on with it there, then "
                f"`nsabench merge {folder}/*`.",
            )
    return folders


def _start(arguments: Sequence[str], place: Place) -> subprocess.Popen[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "nsabench", "all", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, **secrecy.variables(), **place.variables},
        start_new_session=True,  # an interrupt of the terminal is handed on once, and by us
    )
    if place.cpus:
        with suppress(ProcessLookupError):  # why it ended is read from its exit code
            os.sched_setaffinity(process.pid, place.cpus)  # and of all that it will start
    return process


def _read(process: subprocess.Popen[str], name: str, show: Callable[[str, str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        show(name, line.rstrip("\n"))
