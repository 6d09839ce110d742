"""What `all` and `run` have in common: measure a plan with progress on the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from nsabench import conclusion
from nsabench.cli._say import say
from nsabench.errors import Interrupted, UsageError
from nsabench.execution import run
from nsabench.execution.run import Finished
from nsabench.model.vocabulary import MARGIN
from nsabench.output import terminal


def measure(
    matrices: Sequence[str],
    device: str,
    quick: bool,
    out: Path | None,
    resume: Path | None,
    kernels: Path | None,
    ops_file: Path | None,
    shard: str,
    margin: float,
    no_sandbox: bool,
    *,
    fit: bool,
) -> Finished:
    """Start or resume a run as the options say. fit: look first whether the machine is."""
    signer = conclusion.prepare()
    for exposure in signer.exposed if signer is not None else ():
        say(
            f"nsabench: the kernels that are measured could take the signing key: {exposure} "
            "(docs/explanation/promises.md)",
            err=True,
        )
    console = terminal.console()
    if resume is not None:
        given = matrices or quick or out or kernels or ops_file or no_sandbox
        if given or shard != "1/1" or device != "auto" or margin != MARGIN:
            raise UsageError(
                "--resume goes on with the plan of the run and takes no matrix, --quick, --out, "
                "--kernels, --ops, --shard, --margin, --no-sandbox or --device",
                "leave them away.",
            )
        with _named(fit), terminal.Progress(console) as progress:
            return conclusion.resume(resume, progress, signer=signer, fit=fit)
    if quick and matrices:
        raise UsageError("--quick names a matrix by itself", "leave the others away.")
    plan = run.make_plan(
        ["quick"] if quick else matrices,
        run.choose_device(device),
        kernels,
        shard,
        ops_file,
        margin,
        sandboxed=not no_sandbox,
    )
    with _named(fit), terminal.Progress(console) as progress:
        return run.start(plan, out, progress, signer=signer, fit=fit)


@contextmanager
def _named(fit: bool) -> Iterator[None]:
    """One that is interrupted says with which command it goes on."""
    try:
        yield
    except Interrupted as interrupted:
        interrupted.command = "all" if fit else "run"
        raise
