"""Import a command only when it is called, and group the options in its help."""

import importlib
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any

import click

# The summaries are here, so that `nsabench --help` imports no command.
SECTIONS = {
    "Write a kernel": {
        "init": "Write a first kernel and a matrix for an op",
        "check": "Check one kernel for correctness and speed",
        "plan": "Show the cases of a plan without measuring",
        "profile": "Write a script that calls one implementation",
        "preflight": "Compile for other GPUs and Triton versions",
    },
    "Measure": {
        "all": "Check the machine, measure, decide and report",
        "run": "Measure, but decide and sign nothing",
        "versions": "Measure under several versions of Triton",
        "fleet": "Write jobs that measure on many GPUs",
        "merge": "Join the shards of a plan into a signed run",
    },
    "Read": {
        "report": "Write the report of a run",
        "compare": "Compare runs with the first of them",
        "threshold": "Find the length from which to use a kernel",
        "explain": "Explain a word of the output",
        "site": "Write a static site about archived runs",
    },
    "Trust": {
        "verify": "Check that a run is complete and unaltered",
        "audit": "Apply the checks to a run or a CSV table",
        "key": "Make and show keys that sign runs",
        "archive": "Keep and query verified runs",
    },
    "Set up": {
        "doctor": "Describe this machine and its problems",
        "list": "List ops, matrices or implementations",
        "images": "Build and run images with pinned versions",
        "completion": "Print a completion script for a shell",
    },
}
SUMMARIES = {name: text for commands in SECTIONS.values() for name, text in commands.items()}

PANELS = {
    "Select": (
        *("where", "only", "op", "shapes", "dtype", "direction", "shard", "candidate", "baseline"),
        *("arch", "triton", "intersection", "kernels", "ops", "ops_file"),
    ),
    "Measure": ("device", "gpus", "timing", "timeout", "margin", "band", "jobs"),
    "Resume and shards": ("out", "resume", "shards", "folder"),
    "Output": (
        *("as_json", "as_markdown", "junit", "verbose", "wide", "each", "watch", "derive"),
        "fail_on",
    ),
    "Safety": ("no_sandbox", "public", "require", "revoked"),
}
PANEL_OF = {name: panel for panel, names in PANELS.items() for name in names}
OTHER = "Options"


class Command(click.Command):
    def format_options(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        panels: dict[str, list[tuple[str, str]]] = {name: [] for name in (*PANELS, OTHER)}
        for parameter in self.get_params(context):
            record = parameter.get_help_record(context)
            if record is not None and isinstance(parameter, click.Option):
                panels[PANEL_OF.get(parameter.name or "", OTHER)].append(record)
        for title, records in panels.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


class CommandGroup(click.Group):
    command_class = Command


class Commands(click.Group):
    def list_commands(self, context: click.Context) -> list[str]:
        return list(SUMMARIES)

    def get_command(self, context: click.Context, name: str) -> click.Command | None:
        if name not in SUMMARIES:
            near = get_close_matches(name, SUMMARIES, 1)
            if near and not context.resilient_parsing:
                context.fail(f"There is no command {name!r}. Did you mean {near[0]!r}?")
            return None
        command: click.Command = importlib.import_module(f"nsabench.cli.{name}").command
        return command

    def format_commands(self, context: click.Context, formatter: click.HelpFormatter) -> None:
        for title, commands in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl(list(commands.items()))


def command(name: str, **settings: Any) -> Callable[[Callable[..., Any]], Command]:
    return click.command(name, cls=Command, **settings)


def group(name: str) -> Callable[[Callable[..., Any]], CommandGroup]:
    return click.group(name, cls=CommandGroup)
