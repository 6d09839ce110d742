import os
import subprocess
import sys
from pathlib import Path

import click

from nsabench.cli import _help, _options
from nsabench.cli._say import say
from nsabench.cli._trust import admit, refuse_inside
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.files import write_text
from nsabench.model.plan import Device, Plan
from nsabench.output import templates
from nsabench.planning.yaml_document import nearest
from nsabench.sources import digest_of


@_help.command("profile")
@click.argument("run", type=_options.FOLDER)
@click.argument("case")
@click.argument("implementation")
@click.argument("script", type=_options.PythonFile(), metavar="FILE.py")
def command(run: Path, case: str, implementation: str, script: Path) -> None:
    """Write a script that calls one implementation.

    FILE.py calls it on the inputs of one case, which are in FILE.pt. Run FILE.py under a profiler,
    or send both files with a bug report. They need nsabench only if the implementation is
    installed. CASE is the beginning of a case's id.

    Example: nsabench profile results/rows 25b3bbb3bf1c mine alone.py
    """
    admit(run, tables=False)
    for path in (script, script.with_suffix(".pt")):
        if os.path.lexists(path):
            raise UsageError(f"{path} is there already", "give another name, or remove it.")
    refuse_inside("", script)
    device = _write(run, case, implementation, script)
    say(script)
    say(script.with_suffix(".pt"))
    profiler = "ncu --profile-from-start off --set full " if device == "cuda" else ""
    say(f"next: {profiler}python {script}", err=True)


def _write(run: Path, case: str, name: str, script: Path) -> Device:
    plan = Plan.read(run / "plan.json")
    found = [planned for planned in plan.cases if planned.id.startswith(case)]
    if len(found) != 1 or not case:
        raise UsageError(
            f"{len(found) or 'no'} case ids of {plan.run_id} begin with {case!r}",
            "give the id of one case, which the report shows.",
        )
    [planned] = found
    if name not in planned.implementations:
        remedy = nearest(name, list(planned.implementations))
        raise UsageError(f"{name!r} was not measured on {planned.id}", remedy)
    info = plan.info(planned.case.op, name)
    if info.source.is_file:
        digest_of(Path(plan.kernels), plan.sources)  # refuses a file that has changed
    write_text(script, templates.reproduction(plan, planned.case, info))
    drawing = [sys.executable, "-P", "-m", "nsabench.cli._draw", str(run), planned.id, name]
    inputs = str(script.with_suffix(".pt"))
    done = subprocess.run([*drawing, inputs], capture_output=True, text=True)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise EnvironmentRefused(
            f"the inputs could not be drawn: {last}", "`nsabench doctor` may find the cause."
        )
    return plan.device
