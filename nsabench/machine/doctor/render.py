"""Shows the findings to people (rich) and to programs (JSON)."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsabench.machine.doctor.problem import Problem, Severity
from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.summary import summarise

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}


def as_json(environment: Environment, problems: list[Problem]) -> dict[str, Any]:
    """Return plain data for `json.dumps`."""
    return {
        "problems": [asdict(problem) for problem in problems],
        "environment": environment.model_dump(mode="json"),
    }


def render(environment: Environment, problems: list[Problem]) -> RenderableType:
    """Show what the machine is, then what is wrong with it."""
    machine = Table.grid(padding=(0, 2))
    machine.add_column(style="dim", no_wrap=True)
    machine.add_column()
    for label, line in summarise(environment, environment.gpus):
        if line:
            machine.add_row(label, Text(line))
    if not problems:
        return Group(machine, "", Text("Nothing wrong was found.", style="green"))
    findings = Table.grid(padding=(0, 2))
    findings.add_column(no_wrap=True)
    findings.add_column()
    for problem in problems:
        advice = Group(Text(problem.what), Text(f"→ {problem.remedy}", style="dim"))
        findings.add_row(Text(problem.severity, style=_STYLES[problem.severity]), advice)
    return Group(machine, Padding(findings, (1, 0, 0, 0)))
