"""Find problems of this machine, each with a remedy."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.text import Text

from nsabench.errors import EnvironmentRefused
from nsabench.machine.doctor import gpu, host, software
from nsabench.machine.doctor.problem import MachineProblem, Severity
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.summary import summarise

FOLDER_PROBLEMS = frozenset({"low_disk", "unwritable"})
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}

LABEL_WIDTH = 16
NEED_TORCH = ("GPU", "software", "libraries", "sandbox")

__all__ = ["FOLDER_PROBLEMS", "MachineProblem", "Severity"]


def examine(environment: Environment, *, results: Path) -> list[MachineProblem]:
    """Return all problems, worst first. results: the folder for runs, which need not exist."""
    problems = [
        *gpu.examine_driver(environment),
        *software.examine(environment),
        *host.examine(environment),
        *gpu.examine_devices(environment),
        *host.examine_folder(results),
    ]
    return sorted(problems, key=lambda problem: list(Severity).index(problem.severity))


def refuse_unfit(environment: Environment, *, results: Path) -> list[MachineProblem]:
    """Return errors and warnings about a run on this machine, worst first.

    Raises `EnvironmentRefused` for an error; on a CPU, only for an error of the folder.
    """
    problems = [p for p in examine(environment, results=results) if p.severity is not Severity.NOTE]
    on_gpu = environment.run.device == "cuda"
    for problem in problems:
        if problem.severity is Severity.ERROR and (on_gpu or problem.code in FOLDER_PROBLEMS):
            more = "" if len(problems) == 1 else " `nsabench doctor` says what else is wrong."
            raise EnvironmentRefused(problem.what.removesuffix("."), problem.remedy + more)
    return problems


def describe(environment: Environment, *, torch: bool | None = None) -> list[Text]:
    """Return labelled lines of a machine. torch: only those that need torch, or (False) others."""
    return [
        Text.assemble((f"{label:{LABEL_WIDTH}}", "dim"), " ", line)
        for label, line in summarise(environment, environment.gpus)
        if line and torch in (None, label.startswith(NEED_TORCH))
    ]


def describe_problems(problems: list[MachineProblem]) -> Iterator[Text]:
    if not problems:
        yield Text("Nothing wrong was found.", style="green")
    for problem in problems:
        severity = f"{problem.severity:8}", _STYLES[problem.severity]
        yield Text.assemble(severity, " ", problem.what)
        yield Text(f"{'':8} → {problem.remedy}", style="dim")
