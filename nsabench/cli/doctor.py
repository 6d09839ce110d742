from contextlib import closing
from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_json
from nsabench.errors import EnvironmentRefused
from nsabench.machine import doctor
from nsabench.machine.environment.collect import collect
from nsabench.output import terminal
from nsabench.running import planner
from nsabench.running.clients import WorkerClient


@_help.command("doctor")
@_options.device
@click.option(
    "--results",
    type=_options.PATH,
    default=Path("results"),
    metavar="DIR",
    help="Folder for the runs, whose disk is checked.",
)
@_options.as_json
def command(device: str, results: Path, as_json: bool) -> int:
    """Describe this machine and its problems.

    Exits with 3 if a problem makes measuring pointless.

    Example: nsabench doctor --json
    """
    try:
        chosen = planner.choose_device(device)
    except EnvironmentRefused:  # the problem is among those that follow
        chosen = "cpu"
    try:
        with closing(WorkerClient(chosen)) as worker:
            described = worker.describe()
    except EnvironmentRefused as refused:
        described = None
        say(f"nsabench: {refused}", err=True)
    environment = collect(described, None)
    problems = doctor.examine(environment, results=results)
    if as_json:
        say_json(doctor.as_json(environment, problems))
    else:
        terminal.console().print(doctor.render(environment, problems))
    bad = any(problem.severity is doctor.Severity.ERROR for problem in problems)
    return EnvironmentRefused.exit_code if bad else 0
