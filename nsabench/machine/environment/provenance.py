"""Reads the command, the plan, the sources and the environment variables of this run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

from nsabench import errors
from nsabench.machine.environment.container import combo_file
from nsabench.machine.environment.model import Checkout, Run
from nsabench.machine.environment.redaction import redact
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
    """Return the command, the state of its sources, and the variables."""
    started = Path(sys.argv[0]).name
    program = ["python", "-m", "nsabench"] if started == "__main__.py" else [started]
    checkouts = [_read_nsabench_checkout(variables, absent)]
    if plan is not None and plan.kernels:
        checkouts.append(_read_checkout("kernels", Path(plan.kernels).resolve().parent, absent))
    return Run(
        device=plan.device if plan is not None else None,
        command=[*program, *map(redact, sys.argv[1:])],
        checkouts=checkouts,
        variables={
            name: redact(value)
            for name, value in sorted(variables.items())
            if _ALLOWED.fullmatch(name) and not _SECRET.search(name)
        },
    )


def _read_nsabench_checkout(variables: Mapping[str, str], absent: dict[str, str]) -> Checkout:
    checkout = _read_checkout("nsabench", Path(errors.__file__).parent, absent)
    built_from = variables.get(COMMIT_VARIABLE) or combo_file().get("revision")
    if checkout.commit is None and built_from:
        del absent["run.checkouts.nsabench"]
        return Checkout(of="nsabench", commit=built_from)
    return checkout


def _read_checkout(
    of: Literal["nsabench", "kernels"], folder: Path, absent: dict[str, str]
) -> Checkout:
    """Return the state of the checkout around `folder`; all None without one, or without git."""
    try:
        found = _git(folder, "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty")
        # An installation inside someone else's checkout (a .venv, say) is not from that commit.
        if not _git(folder, "ls-files", "--", ".").strip():
            absent[f"run.checkouts.{of}"] = "its folder is not part of a git checkout"
            return Checkout(of=of)
    except _GitError as error:
        absent[f"run.checkouts.{of}"] = str(error)
        return Checkout(of=of)
    commit, _, dirty = found.strip().partition("-")
    return Checkout(of=of, commit=commit, dirty=bool(dirty))


class _GitError(Exception):
    """`str()` says why the state of a checkout is unknown."""


def _git(folder: Path, *arguments: str) -> str:
    # fsmonitor would start a program that the checkout names; optional locks disturb other users.
    command = ["git", "-C", str(folder), "-c", "core.fsmonitor=false", *arguments]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=_GIT_TIMEOUT_S,
            stdin=subprocess.DEVNULL,
            env=_git_variables(),
        )
    except FileNotFoundError:
        raise _GitError("git is not installed") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise _GitError(f"git could not be run: {type(error).__name__}") from None
    if done.returncode != 0:
        message = done.stderr.strip().splitlines() or [f"git ended with {done.returncode}"]
        # The message goes into a file that others read: no paths in it.
        raise _GitError(re.sub(r"'?/\S+", "…", message[0]))
    return done.stdout


def _git_variables() -> dict[str, str]:
    # Set in hooks, these point git at a repository other than the folder's.
    elsewhere = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE"}
    variables = {name: value for name, value in os.environ.items() if name not in elsewhere}
    return {**variables, "GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
