"""What `all` and `run` have in common: measure a plan with progress on the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from nsabench import conclusion
from nsabench.cli._options import Measuring
from nsabench.cli._say import say
from nsabench.errors import Interrupted, UsageError
from nsabench.execution import estimate, run
from nsabench.execution.run import Finished
from nsabench.machine.memory import memory_of
from nsabench.model.vocabulary import MARGIN
from nsabench.output import events, terminal
from nsabench.planning.narrow import Narrowed


def measure(asked: Measuring, *, fit: bool) -> Finished:
    """Start or resume a run as the options say. fit: look first whether the machine is."""
    signer = conclusion.prepare()
    for exposure in signer.exposed if signer is not None else ():
        say(
            f"nsabench: the kernels that are measured could take the signing key: {exposure} "
            "(docs/explanation/promises.md)",
            err=True,
        )
    shown = events.Events() if asked.as_json else terminal.Progress(terminal.console())
    if asked.resume is not None:
        if asked != _resuming(asked):
            raise UsageError(
                "--resume goes on with the plan of the run and takes no matrix, --quick, --out, "
                "--kernels, --ops, --shard, --margin, --where, --only, --tag, "
                "--no-sandbox or --device",
                "leave them away.",
            )
        with _named(fit), shown as progress:
            return conclusion.resume(
                asked.resume,
                progress,
                signer=signer,
                fit=fit,
            )
    if asked.quick and asked.matrices:
        raise UsageError("--quick names a matrix by itself", "leave the others away.")
    plan = run.make_plan(
        ["quick"] if asked.quick else asked.matrices,
        run.choose_device(asked.device),
        asked.kernels,
        asked.shard,
        asked.ops_file,
        asked.margin,
        narrowed=Narrowed(asked.where, asked.only),
        tag=asked.tag,
        sandboxed=not asked.no_sandbox,
    )
    if plan.device == "cpu":
        # A GPU says by itself that it is out of memory; a host ends whoever asks for too much.
        estimate.refuse_unfitting(plan, memory_of("cpu"))
    with _named(fit), shown as progress:
        return run.start(plan, asked.out, progress, signer=signer, fit=fit)


def _resuming(asked: Measuring) -> Measuring:
    """The options of one who resumes, and asks for nothing else."""
    return Measuring(
        matrices=(),
        device="auto",
        quick=False,
        out=None,
        resume=asked.resume,
        kernels=None,
        ops_file=None,
        shard="1/1",
        margin=MARGIN,
        where=(),
        only=(),
        tag="",
        no_sandbox=False,
        verbose=asked.verbose,
        as_json=asked.as_json,
        junit=asked.junit,
        open_page=asked.open_page,
    )


@contextmanager
def _named(fit: bool) -> Iterator[None]:
    """One that is interrupted says with which command it goes on."""
    try:
        yield
    except Interrupted as interrupted:
        interrupted.command = "all" if fit else "run"
        raise
