from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from nsabench.cli import _help, _options
from nsabench.cli._say import say, say_document
from nsabench.errors import EnvironmentRefused
from nsabench.model.description import Described


@_help.command("doctor")
@_options.device
@_options.as_json
def command(device: str, as_json: bool) -> int:
    """Describe this machine and its problems.

    Exits with 3 if a problem makes measuring impossible or pointless.

    Example: nsabench doctor --json
    """
    # The worker imports torch, which takes seconds. This process imports everything else meanwhile.
    from nsabench.machine.doctor.gpu import choose_device
    from nsabench.running.clients import WorkerClient

    try:
        chosen = choose_device(device)
    except EnvironmentRefused:  # the reason is among the problems that are listed below
        chosen = "cpu"
    with closing(WorkerClient(chosen, is_forked=False)) as worker, ThreadPoolExecutor(1) as pool:
        return _report(pool.submit(worker.describe), as_json)


def _report(asked: Future[Described], as_json: bool) -> int:
    from nsabench.machine import doctor
    from nsabench.machine.environment.collect import collect
    from nsabench.output import terminal
    from nsabench.output.programs import DoctorDocument

    console, early = terminal.console(), collect(None, None)
    if not as_json:
        console.print(*doctor.describe(early, torch=False), sep="\n")
    described = None
    try:
        described = asked.result()
    except EnvironmentRefused as refused:
        say(f"nsabench: {refused}", err=True)
    environment = collect(described, None)
    problems = doctor.examine(environment, results=Path("results"))
    bad = any(problem.severity is doctor.Severity.ERROR for problem in problems)
    code = EnvironmentRefused.exit_code if bad else 0
    if as_json:
        say_document(DoctorDocument(exit_code=code, problems=problems, environment=environment))
        return code
    console.print(*doctor.describe(environment, torch=True), sep="\n")
    console.print("", *doctor.describe_problems(problems), sep="\n")
    return code
