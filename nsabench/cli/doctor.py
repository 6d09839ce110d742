from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_document
from nsabench.errors import EnvironmentRefused
from nsabench.machine import doctor
from nsabench.machine.environment.collect import collect
from nsabench.machine.environment.summary import summarise
from nsabench.model.description import Described
from nsabench.model.plan import Device
from nsabench.output import terminal
from nsabench.output.programs import DoctorDocument
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

    Exits with 3 if a problem makes measuring impossible or pointless.

    Example: nsabench doctor --json
    """
    try:
        chosen = planner.choose_device(device)
    except EnvironmentRefused:  # the reason is among the problems that are listed below
        chosen = "cpu"
    printed: set[str] = set()
    console = terminal.console()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(_describe, chosen)  # the worker imports torch, which can take long
        if not as_json:
            early = collect(None, None)
            printed = doctor.find_labels_without_torch(early)
            others = {label for label, _ in summarise(early, early.gpus)} - printed
            console.print(*doctor.describe(early, without=others), sep="\n")
        described = asked.result()
    environment = collect(described, None)
    problems = doctor.examine(environment, results=results)
    bad = any(problem.severity is doctor.Severity.ERROR for problem in problems)
    code = EnvironmentRefused.exit_code if bad else 0
    if as_json:
        say_document(DoctorDocument(exit_code=code, problems=problems, environment=environment))
        return code
    console.print(*doctor.describe(environment, without=printed), sep="\n")
    console.print("", *doctor.describe_problems(problems), sep="\n")
    return code


def _describe(device: Device) -> Described | None:
    try:
        with closing(WorkerClient(device)) as worker:
            return worker.describe()
    except EnvironmentRefused as refused:
        say(f"nsabench: {refused}", err=True)
        return None
