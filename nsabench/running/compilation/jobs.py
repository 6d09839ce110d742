"""Which calls compile what a pass needs, and in which order."""

from __future__ import annotations

import json
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Role, Runs

# Of one call, however long its case may take; a candidate has no longer than that. FlashInfer
# compiled for 144 s beside eleven others.
LIMIT_S = 300.0


@dataclass(frozen=True)
class Job:
    case: Case
    info: ImplementationInfo

    @property
    def limit_s(self) -> float:
        is_candidate = self.info.role is Role.CANDIDATE
        return min(self.case.timeout_s, LIMIT_S) if is_candidate else LIMIT_S


@dataclass(frozen=True)
class Jobs:
    """Those of one implementation. own: the others of the first one's family. families: the other
    families; of each the one that goes ahead is the first."""

    first: Job
    own: Sequence[Job]
    families: Sequence[Sequence[Job]]

    @property
    def is_declared(self) -> bool:
        """Whether its author says that it compiles, so that no first call need show it."""
        return bool(self.first.info.compiled_by)

    def without_first(self) -> Jobs | None:
        """The others, if there are any: who refuses one case may take another."""
        others = [*self.own, *(job for family in self.families for job in family)]
        return in_turn(others) if others else None


def jobs_of(plan: Plan, cells: Mapping[str, Iterable[str]]) -> dict[bool, list[Jobs]]:
    """Of each implementation but the controls; by whether a worker calls it that imports no
    candidate."""
    clean = plan.clean_sources
    jobs: dict[ImplementationInfo, dict[str, Job]] = {}
    for case_id, names in cells.items():
        case = plan.measured(case_id).case
        for name in names:
            info = plan.info(case.op, name)
            if _may_compile(info):
                launched = json.dumps(case.content)  # however it is timed
                jobs.setdefault(info, {}).setdefault(launched, Job(case, info))
    by_kind: dict[bool, list[Jobs]] = {True: [], False: []}
    for info, of_one in jobs.items():
        is_clean = info.role is Role.BASELINE and info.source in clean
        by_kind[is_clean].append(in_turn(list(of_one.values())))
    return by_kind


def _may_compile(info: ImplementationInfo) -> bool:
    """Kernels that later processes find in a cache. What candidates do is not known before. Most
    controls share theirs with others."""
    if info.role is Role.CONTROL or Runs.CUDA not in info.devices:
        return False
    return info.role is Role.CANDIDATE or bool(info.compiled_by)


def in_turn(jobs: Sequence[Job]) -> Jobs:
    """The smallest case, then the others by family. A backward has its forward's kernels as well,
    so it is what goes ahead of others."""
    smallest = min(jobs, key=_bytes)
    families: dict[Hashable, list[Job]] = {}
    for job in jobs:
        if job is not smallest:
            families.setdefault(_family(job.case), []).append(job)
    for family in families.values():
        family.sort(key=lambda job: (not job.case.direction.differentiates, _bytes(job)))
    own = families.pop(_family(smallest.case), [])
    return Jobs(smallest, own, list(families.values()))


def _bytes(job: Job) -> int:
    return ops.work(job.case).bytes_min


def _family(case: Case) -> Hashable:
    """What cases share that differ in length and direction alone."""
    return case.op, ops.sizes_but_length(case), case.dtype, case.distribution, case.streams
