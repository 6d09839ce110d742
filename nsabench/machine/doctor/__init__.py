"""Finds what is wrong with this machine, and says what to do about it."""

from __future__ import annotations

from pathlib import Path

from nsabench.errors import EnvironmentRefused
from nsabench.machine.doctor import driver, gpu, host, software, variables
from nsabench.machine.doctor.problem import Problem, Severity
from nsabench.machine.doctor.render import as_json, render
from nsabench.machine.environment.model import Environment

# Codes of problems of the results folder.
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
    """Return all problems, worst first. results: the folder for runs; it may not exist."""
    problems = [
        *driver.examine(environment),
        *software.examine(environment),
        *host.examine(environment),
        *variables.examine(environment),
        *gpu.examine(environment),
        *host.examine_folder(results),
    ]
    order = list(Severity)
    return sorted(problems, key=lambda problem: order.index(problem.severity))


def refuse_unfit(environment: Environment, *, results: Path) -> list[Problem]:
    """Return the errors and warnings about a run on this machine, worst first.

    Raises `EnvironmentRefused` for an error; on a CPU only for an error of the folder.
    """
    problems = [p for p in examine(environment, results=results) if p.severity is not Severity.NOTE]
    on_gpu = environment.run.device == "cuda"
    for problem in problems:
        if problem.severity is Severity.ERROR and (on_gpu or problem.code in OF_THE_FOLDER):
            more = "" if len(problems) == 1 else " `nsabench doctor` says what else is wrong."
            raise EnvironmentRefused(problem.what.removesuffix("."), problem.remedy + more)
    return problems


def worst(problems: list[Problem]) -> Severity | None:
    """Return the severity of the worst problem; None if there is no problem."""
    return min((p.severity for p in problems), key=list(Severity).index, default=None)
