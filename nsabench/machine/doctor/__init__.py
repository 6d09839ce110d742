"""Finds problems of this machine, each with a remedy."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsabench.errors import EnvironmentRefused
from nsabench.machine.doctor import gpu, host, software
from nsabench.machine.doctor.problem import MachineProblem, Severity
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.summary import summarise

OF_THE_FOLDER = frozenset({"low_disk", "unwritable"})
_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}

__all__ = [
    "OF_THE_FOLDER",
    "MachineProblem",
    "Severity",
    "as_json",
    "examine",
    "refuse_unfit",
    "render",
]


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

    Raises `EnvironmentRefused` for an error; on a CPU only for one of the folder.
    """
    problems = [p for p in examine(environment, results=results) if p.severity is not Severity.NOTE]
    on_gpu = environment.run.device == "cuda"
    for problem in problems:
        if problem.severity is Severity.ERROR and (on_gpu or problem.code in OF_THE_FOLDER):
            more = "" if len(problems) == 1 else " `nsabench doctor` says what else is wrong."
            raise EnvironmentRefused(problem.what.removesuffix("."), problem.remedy + more)
    return problems


def as_json(environment: Environment, problems: list[MachineProblem]) -> dict[str, Any]:
    return {
        "problems": [asdict(problem) for problem in problems],
        "environment": environment.model_dump(mode="json"),
    }


def render(environment: Environment, problems: list[MachineProblem]) -> RenderableType:
    machine = Table.grid(padding=(0, 2))
    machine.add_column(style="dim", no_wrap=True)
    for label, line in summarise(environment, environment.gpus):
        if line:
            machine.add_row(label, Text(line))
    if not problems:
        return Group(machine, "", Text("Nothing wrong was found.", style="green"))
    findings = Table.grid(padding=(0, 2))
    findings.add_column(no_wrap=True)
    for problem in problems:
        advice = Group(Text(problem.what), Text(f"→ {problem.remedy}", style="dim"))
        findings.add_row(Text(problem.severity, style=_STYLES[problem.severity]), advice)
    return Group(machine, Padding(findings, (1, 0, 0, 0)))
