"""Run nsabench in the image of a combo, with folders for results and inputs, and with GPUs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.images import daemon
from nsabench.images.combos import tag
from nsabench.machine.environment.provenance import COMBO_VARIABLE, DIGEST_VARIABLE

RESULTS = "/results"
INPUT = "/input"
STOP_GRACE_S = 20
# podman as root would set these limits to a million, which some hosts refuse.
ULIMITS = {"core": 0, "nofile": 16384, "nproc": 16384}


@dataclass(frozen=True)
class Launch:
    """A command of nsabench in a container, which sees the files `inputs` read-only in /input."""

    combo: str
    arguments: Sequence[str]
    results: Path
    gpus: str = "none"  # none, all, or device indices: 0,1
    inputs: Sequence[Path] = ()
    user: str = ""  # UID:GID; default: the caller's
    memory: str = "16g"


def run(launch: Launch, say: Callable[[str], None]) -> int:
    """Run a container to its end and return the exit code. `say` gets each printed line."""
    _check_results(launch.results)
    image = tag(launch.combo)
    client = daemon.connect()
    with daemon.explained(image):
        digest = str(client.images.get(image).id)
        container = client.containers.create(image, **_make_settings(launch, digest))
        try:
            _check_gpus(container, launch)
            return _follow(container, say)
        finally:
            container.remove(force=True)


def _check_results(results: Path) -> None:
    try:
        results.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{results} cannot be made: {error.strerror}", "give --results a writable folder."
        ) from None
    if not os.access(results, os.W_OK):
        raise UsageError(
            f"{results} cannot be written by uid {os.getuid()}",
            "give --results a folder of your own.",
        )


def _make_settings(launch: Launch, digest: str) -> dict[str, Any]:
    from docker.types import DeviceRequest, Ulimit

    volumes = {str(launch.results.resolve()): {"bind": RESULTS, "mode": "rw"}}
    for path in launch.inputs:
        volumes[str(path.resolve())] = {"bind": f"{INPUT}/{path.name}", "mode": "ro"}
    requests = []
    if launch.gpus == "all":
        requests = [DeviceRequest(count=-1, capabilities=[["gpu"]])]
    elif launch.gpus != "none":
        requests = [DeviceRequest(device_ids=launch.gpus.split(","), capabilities=[["gpu"]])]
    return {
        "command": list(launch.arguments),
        "user": launch.user or f"{os.getuid()}:{os.getgid()}",
        "read_only": True,
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "network_mode": "none",
        "mem_limit": launch.memory,
        "pids_limit": 4096,
        "ulimits": [Ulimit(name=name, soft=most, hard=most) for name, most in ULIMITS.items()],
        "shm_size": "1g",
        # Files in /tmp must be executable, since Triton loads its launchers from there.
        "tmpfs": {"/tmp": "rw,exec,nosuid,nodev,mode=1777,size=4g"},
        "volumes": volumes,
        "device_requests": requests,
        "environment": {DIGEST_VARIABLE: digest, COMBO_VARIABLE: launch.combo},
        "init": True,
        "stdin_open": False,
    }


def _check_gpus(container: Any, launch: Launch) -> None:
    """Raise `EnvironmentRefused` if the daemon ignored the request for GPUs, as podman does."""
    received = container.attrs["HostConfig"]
    if launch.gpus != "none" and not (received.get("DeviceRequests") or received.get("Devices")):
        raise EnvironmentRefused(
            "the daemon ignored the request for GPUs, as podman's socket does",
            "use Docker, or `podman run --device nvidia.com/gpu=all` as docker/README.md shows.",
        )


def _follow(container: Any, say: Callable[[str], None]) -> int:
    container.start()
    try:
        for line in _split_lines(container.logs(stream=True, follow=True)):
            say(line)
        return int(container.wait()["StatusCode"])
    except KeyboardInterrupt:
        # nsabench has logged the finished cases, and exits with 130: the run can be resumed.
        container.stop(timeout=STOP_GRACE_S)
        raise


def _split_lines(chunks: Iterable[bytes]) -> Iterator[str]:
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            yield line.decode("utf-8", "replace")
    if rest:
        yield rest.decode("utf-8", "replace")
