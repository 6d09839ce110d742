"""Reads which container this process runs in."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nsabench.machine.environment.model import Container

# `nsabench images run` sets it, since an image cannot contain its own digest.
DIGEST_VARIABLE = "NSABENCH_IMAGE_DIGEST"
COMBO_VARIABLE = "NSABENCH_COMBO"


def read_container(
    variables: Mapping[str, str], absent: dict[str, str], root: Path = Path("/")
) -> Container:
    runtime = _runtime(variables, root)
    digest = variables.get(DIGEST_VARIABLE) or None
    if runtime is not None and digest is None:
        absent["container.image_digest"] = f"{DIGEST_VARIABLE} is not set"
    return Container(
        runtime=runtime, image_digest=digest, combo=variables.get(COMBO_VARIABLE) or None
    )


def _runtime(variables: Mapping[str, str], root: Path) -> str | None:
    if variables.get("KUBERNETES_SERVICE_HOST"):
        return "kubernetes"
    if variables.get("APPTAINER_CONTAINER") or variables.get("SINGULARITY_CONTAINER"):
        return "apptainer"
    if (root / "run/.containerenv").exists():
        return "podman"
    if (root / ".dockerenv").exists():
        return "docker"
    return variables.get("container") or None  # set by systemd-nspawn, LXC and others
