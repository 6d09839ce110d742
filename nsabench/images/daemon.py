"""Connect to Docker or podman, and explain the daemon's errors."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from nsabench.errors import EnvironmentRefused, NsabenchError, UsageError

CONNECT_LIMIT_S = 600  # the daemon is silent while it imports the layers of a large image


def connect() -> Any:
    """Return a client for DOCKER_HOST; if that is not set, for Docker's or podman's socket."""
    try:
        import docker
        from docker.errors import DockerException
    except ImportError:
        raise EnvironmentRefused(
            "the Docker SDK is not installed", "pip install 'nsabench[images]'."
        ) from None
    tried = []
    for address in _list_addresses():
        try:
            client = (
                docker.DockerClient(base_url=address, timeout=CONNECT_LIMIT_S)
                if address
                else docker.from_env(timeout=CONNECT_LIMIT_S)
            )
            client.ping()
        except DockerException:
            tried.append(address or os.environ.get("DOCKER_HOST", "unix:///var/run/docker.sock"))
            continue
        return client
    raise EnvironmentRefused(
        f"no container daemon answers at {', '.join(tried)}",
        "start it (`systemctl start docker`, or `podman system service`), or set DOCKER_HOST.",
    )


def _list_addresses() -> list[str]:
    if os.environ.get("DOCKER_HOST"):
        return [""]
    folders = [os.environ.get("XDG_RUNTIME_DIR", ""), "/run"]
    sockets = [Path(folder) / "podman/podman.sock" for folder in folders if folder]
    return ["", *(f"unix://{socket}" for socket in sockets if socket.exists())]


@contextmanager
def explained(image: str) -> Iterator[None]:
    """Turn errors of the daemon into a `NsabenchError` with a remedy."""
    from docker.errors import APIError, ImageNotFound
    from requests.exceptions import RequestException

    try:
        yield
    except ImageNotFound:
        combo = image.partition(":")[2]
        raise UsageError(
            f"the image {image} does not exist", f"build it with `nsabench images build {combo}`."
        ) from None
    except APIError as error:
        raise _explain(image, " ".join(str(error.explanation or error).split())) from None
    except RequestException as error:
        raise EnvironmentRefused(
            f"the container daemon stopped answering: {type(error).__name__}", "read its log."
        ) from None


def _explain(image: str, message: str) -> NsabenchError:
    low = message.lower()
    if "could not select device driver" in low or "nvidia-container" in low or "libnvidia" in low:
        return EnvironmentRefused(
            "the daemon has no GPU runtime",
            "install the NVIDIA Container Toolkit and restart the daemon, or use --gpus none.",
        )
    if "container-init binary not found" in low:
        return EnvironmentRefused(
            "podman has no init program for containers", "install the package catatonit."
        )
    if "no space left" in low:
        return EnvironmentRefused(
            f"the daemon's disk is full: {message[:200]}",
            "make room on the disk, for example with `docker image prune`.",
        )
    return NsabenchError(f"{image}: the daemon refused: {message[:400]}", "read the daemon's log.")
