"""Measure with progress on the terminal, and show the end of a run, for `all` and `run`."""

from nsabench import conclusion
from nsabench.cli._options import Measuring
from nsabench.cli._say import say_document
from nsabench.cli._trust import refuse_inside
from nsabench.errors import Interrupted, UsageError
from nsabench.machine.doctor.gpu import choose_device
from nsabench.machine.environment.collect import memory_of
from nsabench.model.plan import Plan
from nsabench.output import ci, result, terminal
from nsabench.planning.narrow import Narrowed
from nsabench.running import planner, run
from nsabench.running.run import Finished


def measure(asked: Measuring, *, fit: bool) -> Finished:
    """Start or resume a run. fit: check the machine first."""
    refuse_inside("--junit", asked.junit, asked.out or asked.resume)
    signer = conclusion.prepare()
    if asked.out is not None and asked.resume is not None:
        raise UsageError("--out and --resume both name the folder of the run", "give one of them.")
    is_resumed_as_it_was = asked.resume is not None and asked == Measuring(
        resume=asked.resume,
        verbose=asked.verbose,
        wide=asked.wide,
        as_json=asked.as_json,
        junit=asked.junit,
    )
    # With --json, standard output is for programs.
    shown = terminal.Progress(terminal.console(stderr=asked.as_json))
    try:
        plan = None if is_resumed_as_it_was else make_plan(asked)
        if plan is not None and plan.device == "cpu":
            # If memory is short, a GPU reports an error, but Linux kills the process.
            planner.refuse_unfitting(plan, memory_of("cpu"))
            if asked.device == "auto":
                planner.refuse_long(plan)
        with shown as progress:
            if asked.resume is not None:
                return conclusion.reopen(asked.resume, progress, plan=plan, signer=signer, fit=fit)
            assert plan is not None
            return run.start(plan, asked.out, progress, signer=signer, fit=fit)
    except Interrupted as interrupted:
        interrupted.command = "all" if fit else "run"  # the command that continues the run
        raise
    except KeyboardInterrupt:
        raise KeyboardInterrupt(*([] if asked.resume else ["nothing was kept"])) from None


def show(finished: Finished, asked: Measuring, signed: str = "") -> int:
    """Show the end of a run, and return the exit code. signed: a sentence about the signature."""
    if asked.as_json:
        say_document(result.as_document(finished, signed))
    else:
        terminal.print_summary(
            finished, terminal.console(), signed=signed, verbose=asked.verbose, wide=asked.wide
        )
    if asked.junit is not None:
        ci.write_junit(ci.list_suites(finished.plan, finished.results), asked.junit)
    return result.exit_code(finished)


def make_plan(asked: Measuring) -> Plan:
    device = choose_device(asked.device)
    return planner.make_plan(
        asked.matrices,
        device,
        asked.kernels,
        asked.shard,
        asked.ops_file,
        asked.margin,
        narrowed=Narrowed(asked.where, asked.only),
        sandboxed=not asked.no_sandbox,
        brief=asked.timing == "brief" or (asked.timing == "auto" and device == "cpu"),
    )
