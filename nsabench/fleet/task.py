"""One shard of a fleet on the host that it was given to: begun, gone on with, or left as it is."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from nsabench.errors import BegunElsewhere, UsageError
from nsabench.evidence.manifest.seal import MANIFEST
from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.fleet.folder import FleetFolder, State
from nsabench.model.plan import Plan
from nsabench.signing import run_keys, secrecy

DONE = (0, 1)  # exit codes of a run that is complete
UNFINISHED = 70  # of a shard whose process ended as if it were (EX_SOFTWARE of sysexits.h)
ELSEWHERE = BegunElsewhere.exit_code
# What its scheduler calls this host, and this job: Slurm's names, and those of our own manifests.
HOSTS = ("SLURMD_NODENAME", "NSABENCH_NODE")
JOBS = ("SLURM_JOB_ID", "NSABENCH_POD")
PR_SET_PDEATHSIG = 1


def measure(folder: FleetFolder, number: int) -> int:
    """Measure a shard to its end, in a process of its own; what is journaled is not run again.

    Returns the exit code of `nsabench all`, and `UNFINISHED` where that left no signed run. One
    that is signed is left as it is. An interrupt is handed on, and what was measured stays. Raises
    `UsageError` where there is no such shard.
    """
    spec = folder.read()
    if not 1 <= number <= spec.shards:
        raise UsageError(
            f"{folder.path} has no shard {number}", f"its shards are 1 to {spec.shards}."
        )
    run = folder.shard(number)
    before = folder.state(number)
    if is_signed(run):
        return before.code if before and before.code in DONE else 0
    if is_begun(run):
        words = ["--resume", str(run)]
    else:
        clear(run)
        shard = f"{number}/{spec.shards}"
        words = [*folder.arguments(spec), "--shard", shard, "--out", str(run)]
    state = State(host=_first(HOSTS) or socket.gethostname(), job=_job(), began=_now())
    if before is None or words[0] != "--resume":
        folder.note(number, state)
    code = _run(words)
    if code in DONE and not is_signed(run):
        code = UNFINISHED  # a fault of nsabench itself ends with 1, too
    if code == ELSEWHERE and before is not None:
        state = before  # the host that it goes on at
    folder.note(number, state.model_copy(update={"code": code}))
    return code


def number_of_pod() -> int:
    """The shard of a pod of an Indexed Job. Raises `UsageError` outside of one."""
    index = os.environ.get("JOB_COMPLETION_INDEX", "")
    if not index.isdigit():
        raise UsageError("this is no pod of an Indexed Job", "say which shard it is.")
    return int(index) + 1


def is_signed(run: Path) -> bool:
    """Whether the run is whole: the signature is written last."""
    return (run / MANIFEST).is_file()


def is_begun(run: Path) -> bool:
    """Whether it has measured anything that a resumption would go on with."""
    folder = RunFolder(run)
    return folder.journal.is_file() and bool(journal.read(folder.journal).headers)


def is_written(run: Path) -> bool:
    """Whether a process holds the journal of the run."""
    try:
        file = RunFolder(run).journal.open("rb")
    except OSError:
        return False
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def clear(run: Path) -> None:
    """Take away what a run left that was ended before it had measured anything. The folder stays:
    it may be where a disk is mounted."""
    if not run.is_dir():
        return
    if is_written(run):
        raise UsageError(
            f"{run} is being written by another nsabench", "wait for it, or end its job."
        )
    folder = RunFolder(run)
    if folder.plan.is_file() and folder.plan.stat().st_size:
        run_keys.forget(Plan.read(folder.plan).run_id)
    for path in run.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _run(words: Sequence[str]) -> int:
    process = subprocess.Popen(
        [sys.executable, "-m", "nsabench", "all", *words],
        stdin=subprocess.DEVNULL,
        env={**_harmless(), **secrecy.variables()},
        start_new_session=True,  # an interrupt is handed on once, and by us
        preexec_fn=_end_with_parent,
    )
    while True:
        try:
            code = process.wait()
        except KeyboardInterrupt:
            process.send_signal(signal.SIGTERM)
            continue
        # 128 and the signal, as a shell says it: a kernel that took too much memory, for example.
        return 128 - code if code < 0 else code


def _harmless() -> dict[str, str]:
    """The environment, without what lets into a bucket: kernels would have it."""
    return {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}


def _end_with_parent() -> None:
    """A task that is killed leaves nobody behind who holds the journal."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _first(names: Sequence[str]) -> str:
    return next((value for name in names if (value := os.environ.get(name))), "")


def _job() -> str:
    array, task = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{task}" if array and task else _first(JOBS)


def _now() -> datetime:
    return datetime.now(UTC).replace(microsecond=0)
