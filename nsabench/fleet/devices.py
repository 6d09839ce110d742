"""Measure one shard on each GPU of this host, all at the same time (`all --gpus`)."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.machine.environment import nvml
from nsabench.output.result import COMPLETE
from nsabench.running.compilation import SHARDS_ON_HOST
from nsabench.signing import secrecy


@dataclass(frozen=True)
class Place:
    """A GPU or a Triton to measure with: its name, and environment variables that select it."""

    name: str
    variables: Mapping[str, str]


def places(asked: str) -> list[Place]:
    """Return the GPUs that `asked` names: `all`, or indices of `nvidia-smi` such as `0,1`."""
    failure = nvml.failure()
    devices = [] if failure else nvml.Device.list_all()
    there = [index for device in devices if (index := device.index()) is not None]
    if not there:
        raise EnvironmentRefused(
            f"--gpus {asked} needs GPUs, and this machine has none: {failure or 'NVML lists none'}",
            "run `nsabench doctor`, or measure without --gpus.",
        )
    try:
        chosen = there if asked == "all" else [int(part) for part in asked.split(",")]
    except ValueError:
        raise UsageError(
            f"{asked!r} names no devices", "write indices, for example 0,1, or all."
        ) from None
    lacking = [index for index in chosen if index not in there]
    if lacking or len(set(chosen)) != len(chosen):
        what = f"GPU {lacking[0]} does not exist" if lacking else "a GPU is named twice"
        raise UsageError(
            f"--gpus {asked}: {what}", f"name some of {', '.join(map(str, there))}, each once."
        )
    order = {"CUDA_DEVICE_ORDER": "PCI_BUS_ID"}  # CUDA then numbers devices as NVML does
    return [Place(f"gpu {i}", {**order, "CUDA_VISIBLE_DEVICES": str(i)}) for i in chosen]


def measure(
    arguments: Sequence[str],
    places: Sequence[Place],
    folder: Path,
    show: Callable[[str, str], None],
) -> list[Path]:
    """Measure or continue one shard at each place; return the shards' folders below `folder`.

    arguments: for `nsabench all`. show: is called with a place's name and each line printed there.
    Raises `EnvironmentRefused` if a shard does not complete.
    """
    count = len(places)
    folders = [folder / str(number) for number in range(1, count + 1)]
    shards = [
        [*arguments, "--shard", f"{number}/{count}", "--resume", str(own)]
        for number, own in enumerate(folders, 1)
    ]
    on_host = {SHARDS_ON_HOST: str(count)}
    places = [replace(place, variables={**place.variables, **on_host}) for place in places]
    for place, code in zip(places, run_at(places, shards, show), strict=True):
        if code not in COMPLETE:
            raise EnvironmentRefused(
                f"the shard on {place.name} ended with exit code {code}",
                f"correct what it reports above, then continue: give the same command with --out "
                f"{folder.with_name(folder.name.removesuffix('.shards'))}.",
            )
    return folders


def run_at(
    places: Sequence[Place], arguments: Sequence[Sequence[str]], show: Callable[[str, str], None]
) -> list[int]:
    """Run `nsabench all` at all places at once; return the exit codes. An interrupt reaches all."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-P", "-m", "nsabench", "all", *words],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, **secrecy.variables(), **place.variables},
            start_new_session=True,  # otherwise Ctrl-C would interrupt it twice
        )
        for place, words in zip(places, arguments, strict=True)
    ]
    readers = [
        Thread(target=_read, args=(process, place.name, show), daemon=True)
        for process, place in zip(processes, places, strict=True)
    ]
    for reader in readers:
        reader.start()
    try:
        return [process.wait() for process in processes]
    except BaseException:
        for process in processes:
            process.send_signal(signal.SIGINT)  # without effect if the process has ended
        for process in processes:
            process.wait()
        raise
    finally:
        for reader in readers:
            reader.join()


def _read(process: subprocess.Popen[str], name: str, show: Callable[[str, str], None]) -> None:
    assert process.stdout is not None
    for line in process.stdout:
        show(name, line.rstrip("\n"))
