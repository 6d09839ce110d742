from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from nsabench import limits
from nsabench.checks import controls
from nsabench.checks.finding import Group
from nsabench.errors import UsageError
from nsabench.evidence.manifest import refuse_altered
from nsabench.evidence.manifest.keys import trusted_keyids
from nsabench.evidence.manifest.seal import brief_environment
from nsabench.evidence.manifest.statement import EnvironmentBrief, Trust
from nsabench.machine.environment.nvml import THROTTLING
from nsabench.machine.environment.pairs import describe_mismatch, unpaired
from nsabench.model.plan import Plan
from nsabench.model.record import Key, Record
from nsabench.model.vocabulary import Catch, Regime, Role
from nsabench.planning.narrow import Narrowed
from nsabench.running.folder import RunFolder
from nsabench.verdicts.tables import SAMPLES, checked_batches, read_records, readable

SAMPLE_COLUMNS = ("case_id", "implementation", "regime", "time_ms")


@dataclass(frozen=True)
class Side:
    """One of the compared runs, with a unique `name`. `samples` holds sorted times in ms."""

    name: str
    folder: Path
    plan: Plan
    environment: EnvironmentBrief
    trust: Trust
    records: dict[Key, Record]
    samples: dict[Key, NDArray[np.float64]]

    def narrowed(self, narrowed: Narrowed) -> Self:
        plan = narrowed.plan(self.plan)
        records = {key: r for key, r in self.records.items() if key[0] in plan.by_id}
        return replace(self, plan=plan, records=records)

    @cached_property
    def roles(self) -> dict[Key, Role]:
        """The role of each planned (case, implementation), without controls."""
        roles = {(i.op, i.name): i.role for i in self.plan.implementations}
        return {
            (planned.id, name): role
            for planned in self.plan.cases
            for name in planned.implementations
            if (role := roles[planned.case.op, name]) is not Role.CONTROL
        }

    @cached_property
    def _missed(self) -> list[Record]:
        return [r for r in self.records.values() if r.caught is Catch.MISSED]

    @cached_property
    def missed(self) -> str:
        names = dict.fromkeys(
            r.implementation for r in self._missed if controls.guarded_regime(r.caught_by) is None
        )
        what = f"the run {self.name} decides nothing, since controls were not caught"
        return f"{what}: {', '.join(names)}" if names else ""

    @cached_property
    def stuck(self) -> list[Group]:
        """The groups of cases that decide nothing, since a check may not work for them."""
        lacking = controls.find_unproven(list(self.records.values()))
        stuck = [
            u.group for u in lacking if u.is_stuck and controls.guarded_regime(u.check) is None
        ]
        return list(dict.fromkeys(stuck))

    @property
    def objection(self) -> str:
        if self.missed or not self.stuck:
            return self.missed
        return (
            f"the run {self.name} decides nothing for {', '.join(map(str, self.stuck))}: a check "
            f"was not shown to work there, since its controls came to no result"
        )

    def objects_to(self, group: Group) -> str:
        return self.objection if self.missed or group in self.stuck else ""

    def objects_to_queue(self, record: Record) -> str:
        if any(controls.guarded_regime(r.caught_by) is not None for r in self._missed):
            return f"the run {self.name} decides nothing in the regime queue: a control was missed"
        return self.objects_to(Group.from_record(record)) or self.doubt(record)

    def doubt(self, record: Record) -> str:
        throttles = set(record.clock_event_reasons.split(", ")) & THROTTLING
        throttled = f"the device was throttled: {', '.join(sorted(throttles))}" if throttles else ""
        return record.time_doubt or throttled

    @cached_property
    def unpaired(self) -> str:
        """The Triton version that the run's torch pins, if the run had another Triton."""
        torch, triton = self.versions.get("torch"), self.versions.get("triton")
        return unpaired(torch, triton) if torch and triton else ""

    @property
    def heading(self) -> str:
        return f"{self.name} (unpaired)" if self.unpaired else self.name

    @cached_property
    def versions(self) -> dict[str, str]:
        e, plan = self.environment, self.plan
        first = next(iter(self.records.values()), None)
        recorded = (first.gpu_name, first.torch, first.triton, first.cuda) if first else ("",) * 4
        written = (e.gpu, e.torch, e.triton, e.cuda)
        device, torch, triton, cuda = (w or r for w, r in zip(written, recorded, strict=True))
        versions = {
            "pair": describe_mismatch(torch, triton),
            "device": device or plan.device,
            "driver": e.driver,
            "torch": torch,
            "triton": triton,
            "CUDA": cuda,
            "python": e.python,
            "image": e.combo,
            "nsabench": plan.nsabench,
            **{f"commit of {of}": commit[:12] for of, commit in sorted(e.commits.items())},
            "kernels file": plan.kernels_sha256[:12],
            "ops file": plan.ops_sha256[:12],
        }
        return {name: value for name, value in versions.items() if value}


def read(folders: Sequence[Path]) -> tuple[Side, ...]:
    """Read two or more finished runs. Raises `UsageError` or `VerificationFailed`."""
    if len(folders) < 2:
        raise UsageError("a comparison needs two runs", "give at least two run folders.")
    sides = [_read_side(folder) for folder in folders]
    counts = Counter(side.name for side in sides)
    return tuple(
        replace(side, name=f"{number}: {side.name}") if counts[side.name] > 1 else side
        for number, side in enumerate(sides, 1)
    )


def _read_side(path: Path) -> Side:
    folder = RunFolder.existing(path)
    trust = refuse_altered(path, trusted_keyids())
    samples = path / "samples.parquet"
    with readable(samples):
        names = SAMPLE_COLUMNS
        parts = list(checked_batches(samples, SAMPLES, limits.SAMPLES, names, names))
    return Side(
        name=path.resolve().name,
        folder=path,
        plan=Plan.read(folder.plan),
        environment=brief_environment(folder.environment),
        trust=trust,
        records={record.key: record for record in read_records(path)},
        samples=_group_samples(parts),
    )


def _group_samples(parts: Sequence[pa.RecordBatch]) -> dict[Key, NDArray[np.float64]]:
    if not parts:  # nothing was timed
        return {}
    table = pa.Table.from_batches(parts).unify_dictionaries()
    # Times in the queue are compared by the quantiles in the records.
    table = table.filter(pc.not_equal(table["regime"].cast(pa.string()), Regime.QUEUE.value))
    keys = {name: table[name].cast(pa.string()) for name in SAMPLE_COLUMNS[:2]}
    groups = pa.table({**keys, "time_ms": table["time_ms"]}).group_by(list(keys))
    lists = groups.aggregate([("time_ms", "list")])
    cases, names = (lists[name].to_pylist() for name in keys)
    times = (np.sort(cell.values.to_numpy()) for cell in lists["time_ms_list"])
    return dict(zip(zip(cases, names, strict=True), times, strict=True))
