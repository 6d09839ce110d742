"""Read where a run comes from: its command, commits, environment variables and container."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from nsabench import errors
from nsabench.machine.environment.identity import redact
from nsabench.machine.environment.model import Container, Run
from nsabench.model.plan import Plan

COMMIT_VARIABLE = "NSABENCH_COMMIT"  # set by our images, which hold no checkout
_GIT_TIMEOUT_S = 10.0
# Variables that change what is loaded, compiled, scheduled or computed.
_ALLOWED = re.compile(
    r"(CUDA|CUDNN|CUBLAS|CUBLASLT|NVIDIA|NCCL|TORCH|TORCHINDUCTOR|PYTORCH|TRITON|NSA|NSABENCH|OMP"
    r"|GOMP|KMP|MKL|OPENBLAS|ATEN)_\w+"
    r"|PYTHONHASHSEED|PYTHONOPTIMIZE|PYTHONMALLOC|LD_PRELOAD|LD_LIBRARY_PATH|MALLOC_\w+"
)
_SECRET = re.compile(r"KEY|PASS|SECRET|TOKEN|CREDENTIAL|SALT", re.IGNORECASE)


def read_run(plan: Plan | None, variables: Mapping[str, str], absent: dict[str, str]) -> Run:
    started = Path(sys.argv[0]).name
    program = ["python", "-m", "nsabench"] if started == "__main__.py" else [started]
    folders = {"nsabench": Path(errors.__file__).parent}
    if plan is not None and plan.kernels:
        folders["kernels"] = Path(plan.kernels).resolve().parent
    built_from = variables.get(COMMIT_VARIABLE)
    commits = {}
    for name, folder in folders.items():
        try:
            commits[name] = read_commit(folder)
        except OSError as error:
            if name == "nsabench" and built_from:
                commits[name] = built_from
            else:
                absent[f"run.commits.{name}"] = str(error)
    return Run(
        device=plan.device if plan is not None else None,
        command=[*program, *map(redact, sys.argv[1:])],
        commits=commits,
        variables={
            name: redact(value)
            for name, value in sorted(variables.items())
            if _ALLOWED.fullmatch(name) and not _SECRET.search(name)
        },
    )


def read_commit(folder: Path) -> str:
    """Return the commit of the checkout around a folder, with `-dirty` if files have changed.

    Raises `OSError` without a checkout or git. The error's text contains no path.
    """
    commit = _run_git(folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
    # A package in a .venv is not from the commit of the project that contains the .venv.
    if not _run_git(folder, "ls-files", "--", "."):
        raise OSError("its folder is not part of a git checkout")
    return commit


def _run_git(folder: Path, *arguments: str) -> str:
    # In a hook, git sets these variables, which may name another repository.
    elsewhere = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    variables = {name: value for name, value in os.environ.items() if name not in elsewhere}
    try:
        done = subprocess.run(
            # fsmonitor would start a program that the checkout names.
            ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments],
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            # Take no optional locks, which would disturb other users of the checkout.
            env={**variables, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"},
        )
    except FileNotFoundError:
        raise OSError("git is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise OSError(f"git could not be run: {type(error).__name__}") from None
    if done.returncode != 0:
        message = done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"]
        raise OSError(re.sub(r"'?/\S+", "…", message[0]))
    return done.stdout.strip()


# `nsabench images run` sets both. An image cannot contain its own digest.
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
