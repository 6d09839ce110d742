"""How far each shard of a fleet has come, by what lies in its folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.fleet.folder import FleetFolder
from nsabench.fleet.task import ELSEWHERE, is_begun, is_signed, is_written
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName


class Stage(StrEnum):
    """How far a shard has come."""

    WAITING = "waiting"  # nothing of it is measured
    MEASURING = "measuring"
    STOPPED = "stopped"  # in the middle; it goes on when it is submitted again
    REFUSED = "refused"  # by its host, or for its input
    WHOLE = "whole"  # measured and signed


@dataclass(frozen=True)
class Progress:
    """Of one shard. cases: of its plan, 0 where there is none yet; measured: of these; code: of
    nsabench, when it last ended; queued: what the scheduler says of it."""

    shard: int
    stage: Stage
    measured: int
    cases: int
    host: str
    code: int | None
    queued: str

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


def of_fleet(
    folder: FleetFolder, queued: Mapping[str, str], sent: Mapping[int, Stage] | None = None
) -> list[Progress]:
    """All shards, in their order. queued: what the scheduler says, by `JOB_TASK`; sent: how far
    those have come that were sent to the bucket of the fleet, where it has one."""
    by_task = {job.rpartition("_")[2]: said for job, said in queued.items() if "_" in job}
    spec = folder.read()
    return [
        _of(folder, number, by_task.get(str(number), ""), (sent or {}).get(number, Stage.WAITING))
        for number in range(1, spec.shards + 1)
    ]


def _of(folder: FleetFolder, number: int, queued: str, sent: Stage) -> Progress:
    run, state = folder.shard(number), folder.state(number)
    code = state.code if state is not None else None
    measured = cases = 0
    if is_begun(run):
        contents = journal.read(RunFolder(run).journal)
        measured = len({entry.case_id for entry in contents.of(PassName.FIRST_LOOK)})
        cases = len(Plan.read(RunFolder(run).plan).cases)
    if is_signed(run) or sent is Stage.WHOLE:
        stage = Stage.WHOLE
    elif is_written(run) or queued.startswith("RUNNING"):
        stage, code = Stage.MEASURING, None
    elif code is not None and code not in (130, 143, ELSEWHERE):
        stage = Stage.REFUSED
    else:
        stage = Stage.STOPPED if cases else sent
    host = state.host if state is not None else ""
    return Progress(number, stage, measured, cases, host, code, queued)
