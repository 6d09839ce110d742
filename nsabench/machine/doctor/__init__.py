"""What is wrong with this machine, and what to do about it. Silent on a healthy one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from nsabench.errors import EnvironmentRefused
from nsabench.machine.doctor import driver, gpu, host, software, variables
from nsabench.machine.doctor.problem import Problem, Severity
from nsabench.machine.doctor.render import as_json, render
from nsabench.machine.environment.model import Environment

# Codes of what is about the folder of the results, and not about the machine.
OF_THE_FOLDER = frozenset({"low_disk", "unwritable"})

__all__ = [
    "OF_THE_FOLDER",
    "Problem",
    "Severity",
    "as_json",
    "examine",
    "refuse_unfit",
    "render",
    "worst",
]


def examine(environment: Environment, *, results: Path) -> list[Problem]:
    """All problems, worst first. `results` is the folder that will hold the runs; it may not exist.

    Nothing but that folder's disk is looked at here: the rest is judged from `environment`.
    """
    checks = [*driver.CHECKS, *software.CHECKS, *host.CHECKS]
    answers = [check(environment) for check in checks]
    answers += variables.examine(environment)
    answers += [check(device) for device in gpu.watched(environment) for check in gpu.CHECKS]
    answers += [host.low_disk(_free_bytes(results)), host.unwritable(_writable(results))]
    problems = [problem for problem in answers if problem is not None]
    order = list(Severity)
    return sorted(problems, key=lambda problem: order.index(problem.severity))


def refuse_unfit(environment: Environment, *, results: Path) -> list[Problem]:
    """Everything graver than a note that a run on this machine suffers from, worst first.

    Raises `EnvironmentRefused` for an error: on a CPU, for one of the folder only.
    """
    problems = [p for p in examine(environment, results=results) if p.severity is not Severity.NOTE]
    on_gpu = environment.run.device == "cuda"
    for problem in problems:
        if problem.severity is Severity.ERROR and (on_gpu or problem.code in OF_THE_FOLDER):
            more = "" if len(problems) == 1 else " `nsabench doctor` says what else is wrong."
            raise EnvironmentRefused(problem.what.removesuffix("."), problem.remedy + more)
    return problems


def worst(problems: list[Problem]) -> Severity | None:
    """The severity of the worst problem; None when there is none."""
    severities = {problem.severity for problem in problems}
    return next((severity for severity in Severity if severity in severities), None)


def _existing(folder: Path) -> Path:
    """The folder or, while it is not made yet, the nearest one above it."""
    folder = folder.absolute()
    return next((f for f in (folder, *folder.parents) if f.is_dir()), Path(folder.anchor))


def _free_bytes(folder: Path) -> int | None:
    try:
        return shutil.disk_usage(_existing(folder)).free
    except OSError:
        return None


def _writable(folder: Path) -> bool:
    return os.access(_existing(folder), os.W_OK | os.X_OK)
