"""Start, resume and read a run."""

from __future__ import annotations

import time
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from nsabench import ops
from nsabench.errors import Interrupted, NsabenchError, UsageError
from nsabench.files import writing
from nsabench.model.plan import Plan
from nsabench.running.clients import CheckerProcess
from nsabench.running.folder import SHARDS, RunFolder
from nsabench.running.log import LogFile
from nsabench.running.log import read as read_log
from nsabench.running.loop import Loop, View
from nsabench.running.session import choose_signer
from nsabench.signing import Signer
from nsabench.verdicts.results import Results, assemble, assess
from nsabench.verdicts.tables import write_tables


@dataclass(frozen=True)
class Finished:
    """A complete run."""

    folder: RunFolder
    plan: Plan
    results: Results
    wall_s: float  # since it was started or resumed
    measuring_s: float
    signer: Signer | None = None  # None if the run was only read
    log_end: str = ""  # the digest of the last line of its log


def start(
    plan: Plan, out: Path | None, view: View, *, signer: Signer | None = None, fit: bool = False
) -> Finished:
    """signer: None makes a key for the run. fit: raise `EnvironmentRefused` on an unfit machine."""
    folder = RunFolder(out or Path("results") / plan.run_id)
    folder.create()
    try:
        with writing(folder.path, f"remove {folder.path} and start again"):
            plan.write(folder.plan)
            if out is None:
                folder.link_latest()
        with folder.resumable():
            return _measure(folder, plan, view, signer, fit=fit, resumed=False)
    except Interrupted:
        if not is_begun(folder.path):
            folder.discard()
            raise KeyboardInterrupt from None
        raise
    except NsabenchError as refused:
        # If the disk is full, the remedy is to resume this run.
        if not isinstance(refused.__cause__, OSError):
            if not is_begun(folder.path):
                folder.discard()
            # A worker refused, for example since the kernels were edited.
            elif refused.exit_code == UsageError.exit_code:
                refused.folder = str(folder.path)
        raise


def is_begun(path: Path) -> bool:
    folder = RunFolder(path)
    is_merged = (path / SHARDS).exists()
    return is_merged or (folder.log.exists() and bool(read_log(folder.log).sessions))


def resume(path: Path, view: View, *, signer: Signer | None = None, fit: bool = False) -> Finished:
    folder = RunFolder.existing(path)
    folder.refuse_foreign()
    plan = Plan.read(folder.plan)
    with folder.writing():
        folder.logs.mkdir(exist_ok=True)
    with folder.resumable():
        return _measure(folder, plan, view, signer, fit=fit, resumed=True)


def read(path: Path) -> Finished:
    """Return a run without executing a file. Raises `UsageError` if its op is in a file."""
    folder = RunFolder.existing(path)
    plan = Plan.read(folder.plan)
    if not ops.has_op_of(plan):
        raise UsageError(
            f"{path} is finished and left as it is; what it shows is derived with the op of "
            f"{Path(plan.ops).name}, a file that is not executed for that",
            f"look at its reports, or make new ones: `nsabench report {path} "
            f"--ops {Path(plan.ops).name} --out DIR`.",
        )
    results = assemble(plan.run_id, folder.parts())
    return Finished(folder, plan, results, wall_s=0, measuring_s=0)


def _measure(
    folder: RunFolder, plan: Plan, view: View, signer: Signer | None, *, fit: bool, resumed: bool
) -> Finished:
    """Measure what the log does not hold yet, and write the tables."""
    began = time.monotonic()
    view.note(f"results go to {folder.path}")
    ops_file = Path(plan.ops) if plan.ops else None
    with folder.writing(), closing(LogFile(folder.log)) as file:
        signer = choose_signer(plan, folder, file, signer, resumed=resumed)
        file.sign_as(signer)
        with closing(CheckerProcess(plan.device, ops_file, plan.ops_sha256)) as checker:
            measuring_s = Loop(plan, file, folder, view, checker, fit=fit).run()
        results = assess(plan, file.log).results()
        write_tables(results, plan.run_id, folder.path)
    wall_s = time.monotonic() - began
    return Finished(folder, plan, results, wall_s, measuring_s, signer, file.end)
