"""All GPUs of a host at once: a shard on each, in a process of its own, and one run out of them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

from nsabench import bounds
from nsabench.bounds import limits
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.execution.compilation.processes import SHARDS_ON_HOST
from nsabench.files import whole, writing
from nsabench.fleet import task
from nsabench.machine.environment import nvml
from nsabench.signing import secrecy

GOOD = (0, 1)  # exit codes of a run that is complete
ASKED = "asked.json"  # beside the shards: what they were begun with


@dataclass(frozen=True)
class Place:
    """Where a shard is measured. variables: environment variables that choose the device."""

    name: str
    variables: Mapping[str, str]


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
    return [Place(f"gpu {i}", {**order, "CUDA_VISIBLE_DEVICES": str(i)}) for i in chosen]


def begun(folder: Path, arguments: Sequence[str], places: Sequence[Place]) -> bool:
    """Whether the shards of these arguments at these places were begun in the folder before; else
    it is made, and holds from here on what was asked for.

    Raises `UsageError` when it is there and holds others: a shard goes on where it was begun, with
    its own plan.
    """
    asked = {"arguments": list(arguments), "places": [place.name for place in places]}
    note = folder / ASKED
    if not folder.exists():
        with writing(folder, "give the same command again"):
            folder.mkdir(parents=True)
            whole(note, f"{json.dumps(asked, indent=1)}\n".encode())
        return False
    remedy = "give --out another folder, or remove that one."
    try:
        before = json.loads(bounds.read(note, limits.MATRIX)) if note.is_file() else None
    except ValueError:
        before = None
    if not isinstance(before, dict):
        raise UsageError(f"{folder} is there, and does not say what was asked for in it", remedy)
    for what, value in asked.items():
        if before.get(what) != value:
            was = " ".join(map(str, before.get(what) or ["none"]))
            raise UsageError(
                f"{folder} holds shards of other {what} than are asked for now: {was}", remedy
            )
    return True


def measure(
    arguments: Sequence[str],
    places: Sequence[Place],
    folder: Path,
    show: Callable[[str, str], None],
) -> list[Path]:
    """Measure a shard at each place, all at once. Returns their folders, below `folder`.

    One that was begun there goes on, and one that is signed is left as it is.

    arguments: of `nsabench all`, the same for all. show: is told the place and the line, for each
    that one prints. Raises `EnvironmentRefused` when a shard did not come to its end; what is
    measured stays, and the same call goes on with it. An interrupt is handed on to all.
    """
    count = len(places)
    folders = [folder / str(number) for number in range(1, count + 1)]
    words = {
        place.name: ["--resume", str(own)]
        if task.is_begun(own)
        else [*arguments, "--shard", f"{number}/{count}", "--out", str(own)]
        for number, (place, own) in enumerate(zip(places, folders, strict=True), 1)
        if not task.is_signed(own)
    }
    for own in folders:
        if not task.is_signed(own) and not task.is_begun(own):
            task.clear(own)
    there = [place for place in places if place.name in words]
    processes = [_start(words[place.name], place, count) for place in there]
    readers = [
        Thread(target=_read, args=(process, place.name, show), daemon=True)
        for process, place in zip(processes, there, strict=True)
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
    failed = {
        place.name: code for place, code in zip(there, codes, strict=True) if code not in GOOD
    }
    if failed:
        name, code = next(iter(failed.items()))
        raise EnvironmentRefused(
            f"the shard on {name} ended with exit code {code}",
            f"see above why, then give the same command again, with --out "
            f"{folder.with_name(folder.name.removesuffix('.shards'))}: it goes on with what is "
            f"measured.",
        )
    return folders


def _start(arguments: Sequence[str], place: Place, count: int) -> subprocess.Popen[str]:
    """count: shards that are measured at once."""
    return subprocess.Popen(
        [sys.executable, "-m", "nsabench", "all", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            **secrecy.variables(),
            **place.variables,
            SHARDS_ON_HOST: str(count),
        },
        start_new_session=True,  # an interrupt of the terminal is handed on once, and by us
    )


def _read(process: subprocess.Popen[str], name: str, show: Callable[[str, str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        show(name, line.rstrip("\n"))
