"""A run as a comparison sees it: its plan, what it measured, and where."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from nsabench import limits
from nsabench.assessment.checks import proofs
from nsabench.assessment.checks.group import Group
from nsabench.assessment.checks.proofs import Lack
from nsabench.assessment.tables import SAMPLES, batches, check_table, misfit, read_records
from nsabench.assessment.verdict import Key
from nsabench.errors import UsageError
from nsabench.evidence.manifest import refuse_altered
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.seal import brief_environment
from nsabench.evidence.manifest.statement import EnvironmentBrief, Trust
from nsabench.execution.folder import RunFolder
from nsabench.machine.environment.nvml import THROTTLING
from nsabench.machine.environment.pairs import belongs, unpaired
from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Role
from nsabench.planning.narrow import Narrowed
from nsabench.reading import OutOfBounds

SAMPLE_COLUMNS = ("case_id", "implementation", "time_ms")


@dataclass(frozen=True)
class Side:
    """One of the runs. `name` tells it from the others; times in `samples` are in ms, sorted."""

    name: str
    folder: Path
    plan: Plan
    environment: EnvironmentBrief
    trust: Trust
    records: dict[Key, Record]
    samples: dict[Key, NDArray[np.float64]]

    def narrowed(self, narrowed: Narrowed) -> Side:
        """The same with the cases only that meet its conditions. Raises `UsageError` where there is
        none."""
        plan = narrowed.plan(self.plan)
        records = {key: r for key, r in self.records.items() if key[0] in plan.by_id}
        return replace(self, plan=plan, records=records)

    @cached_property
    def missed(self) -> str:
        """Which controls got away, if some did: the run decides nothing."""
        names = Counter(
            r.implementation
            for r in self.records.values()
            if r.caught is Catch.MISSED and proofs.regime_of(r.caught_by) is None
        )
        return (
            f"the run {self.name} decides nothing: {', '.join(names)} not caught" if names else ""
        )

    @cached_property
    def stuck(self) -> list[Group]:
        """The cases of which nothing is decided, since a check of them may be broken."""
        lacking = proofs.of_records(list(self.records.values()))
        return list(
            dict.fromkeys(
                u.group
                for u in lacking
                if u.lack is Lack.STUCK and proofs.regime_of(u.check) is None
            )
        )

    def objects_to_queue(self, record: Record) -> str:
        """Why the run decides nothing of calls one behind the other on this case."""
        missed = any(
            r.caught is Catch.MISSED and proofs.regime_of(r.caught_by) is not None
            for r in self.records.values()
        )
        if missed:
            return f"the run {self.name} decides nothing in the queue: a control was not caught"
        return self.objects_to(Group.of(record)) or self.doubt(record)

    @property
    def objection(self) -> str:
        """Why the run, or a part of it, decides nothing; empty where it does."""
        if self.missed or not self.stuck:
            return self.missed
        return (
            f"the run {self.name} decides nothing of {', '.join(map(str, self.stuck))}: no control "
            f"showed that each check works there"
        )

    def objects_to(self, group: Group) -> str:
        """Why the run decides nothing of these cases."""
        return self.objection if self.missed or group in self.stuck else ""

    def doubt(self, record: Record) -> str:
        """Why this time decides nothing."""
        throttles = set(record.clock_event_reasons.split(", ")) & THROTTLING
        throttled = f"the device was throttled: {', '.join(sorted(throttles))}" if throttles else ""
        return record.time_doubt or throttled

    @cached_property
    def unpaired(self) -> str:
        """The Triton that the torch of the run belongs with, where it had another; else empty."""
        recorded = next(iter(self.records.values()), None)
        torch = self.environment.torch or (recorded.torch if recorded else None)
        triton = self.environment.triton or (recorded.triton if recorded else None)
        return unpaired(torch, triton) if torch and triton else ""

    @property
    def heading(self) -> str:
        """Its name over a column, and whether its torch and Triton are no pair."""
        return f"{self.name} (unpaired)" if self.unpaired else self.name

    @cached_property
    def versions(self) -> dict[str, str]:
        """What may make two runs differ, by name."""
        e, plan = self.environment, self.plan
        recorded = next(iter(self.records.values()), None)
        gpu, torch, triton, cuda = (
            (recorded.gpu_name, recorded.torch, recorded.triton, recorded.cuda)
            if recorded
            else (None, None, None, None)
        )
        versions = {
            "pair": belongs(e.torch or torch, e.triton or triton),
            "device": e.gpu or gpu or plan.device,
            "driver": e.driver,
            "torch": e.torch or torch,
            "triton": e.triton or triton,
            "CUDA": e.cuda or cuda,
            "python": e.python,
            "image": e.combo,
            "nsabench": plan.nsabench,
            **{f"commit of {of}": commit[:12] for of, commit in sorted(e.commits.items())},
            "kernels file": plan.kernels_sha256[:12],
            "ops file": plan.ops_sha256[:12],
        }
        return {name: value for name, value in versions.items() if value}


def read(folders: Sequence[Path]) -> tuple[Side, ...]:
    """The runs in `folders`, named so that they can be told apart.

    Raises `UsageError` when there are fewer than two or one is not a finished run, and
    `VerificationFailed` when one is signed and is not what was signed.
    """
    if len(folders) < 2:
        raise UsageError("a comparison needs two runs", "give at least two run folders.")
    sides = [_read(folder) for folder in folders]
    counts = Counter(side.name for side in sides)
    return tuple(
        replace(side, name=f"{number}: {side.name}") if counts[side.name] > 1 else side
        for number, side in enumerate(sides, 1)
    )


def _read(path: Path) -> Side:
    folder = RunFolder.existing(path)
    trust = refuse_altered(path, trusted_keyids(()))
    records = read_records(path)
    try:
        check_table(path / "samples.parquet", limits.SAMPLES)
        wrong = misfit(pq.read_schema(path / "samples.parquet"), SAMPLES, SAMPLE_COLUMNS)
        parts = [] if wrong else list(batches(path / "samples.parquet", SAMPLE_COLUMNS))
    except (OSError, pa.ArrowException):
        raise UsageError(
            f"{path} holds no samples", "give a finished run; `all --resume` finishes one."
        ) from None
    except OutOfBounds as error:
        wrong = str(error)
    if wrong:
        raise UsageError(f"samples.parquet of {path} {wrong}", "give the folder as it was made.")
    return Side(
        name=path.resolve().name,
        folder=path,
        plan=Plan.read(folder.plan),
        environment=brief_environment(folder.environment),
        trust=trust,
        records={record.key: record for record in records},
        samples=_by_key(parts),
    )


def _by_key(parts: Sequence[pa.RecordBatch]) -> dict[Key, NDArray[np.float64]]:
    """The times of each record, sorted."""
    if not any(part.num_rows for part in parts):  # nothing was timed
        return {}
    table = pa.Table.from_batches(parts).unify_dictionaries().combine_chunks()
    codes, names = [], []
    for column in ("case_id", "implementation"):
        encoded = table[column].combine_chunks()
        codes.append(encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64))
        names.append(encoded.dictionary.to_pylist())
    times = table["time_ms"].to_numpy()
    cells = codes[0] * max(len(names[1]), 1) + codes[1]
    order = np.lexsort((times, cells))
    places, starts = np.unique(cells[order], return_index=True)
    return {
        (names[0][place // len(names[1])], names[1][place % len(names[1])]): part
        for place, part in zip(
            places.tolist(), np.split(times[order], starts[1:].tolist()), strict=True
        )
    }


def compared(side: Side) -> dict[Key, Role]:
    """What was planned to be measured and can be compared: everything but controls."""
    roles = {(i.op, i.name): i.role for i in side.plan.implementations}
    return {
        (planned.id, name): role
        for planned in side.plan.cases
        for name in planned.implementations
        if (role := roles[planned.case.op, name]) is not Role.CONTROL
    }
