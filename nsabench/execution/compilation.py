"""Kernels compiled ahead, by several processes at once, before anything is timed.

A compiler keeps one core busy, and a pass that meets each kernel when it times it waits for one
compiler after the other. Here every implementation that compiles is called on each of its cases
first. What that leaves in the caches of compilers is what the workers of every pass begin with;
nothing else of it counts: what fails here fails again where it is measured, and is recorded there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue
from threading import Condition

from nsabench import ops
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor, clean_sources
from nsabench.execution.supervisor.scratch import Aside, Scratch, remove
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Role, Runs

MOST_PROCESSES = 12
CONTEXT_BYTES = 1 << 30  # of a process on the device, before it holds anything
SHARE = 0.7  # of the device's memory that all of them may take
SETS = 6  # times what a case's inputs and outputs take, for what is saved and set aside
# A first call that took so much longer than the second compiled something, or chose a variant.
COMPILES_S = 0.15
WORTH_IT = 4  # cases; fewer are compiled as they come
KILL_EVERY_S = 0.2  # of an interrupted one
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
    """Those of one implementation. families: of each the one that goes ahead is the first."""

    first: Job
    families: Sequence[Sequence[Job]]


class Ahead:
    """What was compiled ahead of the passes of a run, and which of it a pass begins with.

    Baselines of clean sources come first, called by workers that import no candidate. What these
    leave is put aside, since who shares a cache with a candidate may find there what that has left.
    The others are called where everything is imported, and begin with it.

    first_s: seconds of first calls, by case and implementation.
    """

    def __init__(self, plan: Plan, run: Path) -> None:
        self._plan = plan
        # By whether they import no candidate.
        self._executors = {
            True: WorkerExecutor.without_candidates(plan, run),
            False: WorkerExecutor.of_plan(plan, run),
        }
        # One for both kinds and all passes, one after another: some caches hold its path.
        self._scratch = Scratch(run)
        self._aside: dict[bool, Aside] = {}
        self.first_s: dict[tuple[str, str], float] = {}
        self.implementations: set[str] = set()
        self.wall_s = 0.0
        self.longest_s = 0.0
        self.longest_of = ""

    def compile(
        self,
        cells: Mapping[str, Iterable[str]],
        memory_bytes: int | None,
        note: Callable[[str], None],
    ) -> None:
        """Compile what cells (implementations by case id) need, once, where that is worth the
        processes. memory_bytes: of the device."""
        room_bytes = int(SHARE * (memory_bytes or 0))
        count = processes(self._plan, room_bytes)
        few = len(cells) < WORTH_IT or count < 2
        if self._plan.device != "cuda" or few or self.first_s:
            return
        note(f"compiling ahead in {count} processes")
        self.call(cells, count, room_bytes)
        note(
            f"kernels of {len(self.implementations)} implementations were compiled ahead in "
            f"{self.wall_s:.0f} s; the longest call took {self.longest_s:.0f} s ({self.longest_of})"
        )

    def call(self, cells: Mapping[str, Iterable[str]], count: int, room_bytes: int) -> None:
        """Have it called in `count` processes, which take no more of the device together than there
        is room, and put aside what that leaves in caches.

        The smallest case of an implementation comes first: by how much longer its first call takes
        than its second one sees whether it compiles, and only then are its other cases called. Of
        those that differ in length and direction alone one goes ahead: the others find most of its
        kernels, and at once with it each would compile them, too.
        """
        began = time.monotonic()
        by_kind = _jobs(self._plan, cells)
        for clean, executor in self._executors.items():
            executor.borrow(self._scratch)
            if not clean:
                self._begin_with(self._aside[True], executor)
            with _Processes(executor, count, room_bytes) as processes_:
                self._call_all(processes_, by_kind[clean])
            self._aside[clean] = self._scratch.put_aside()
        self.wall_s = time.monotonic() - began

    def _begin_with(self, aside: Aside, executor: WorkerExecutor) -> None:
        """Have one worker copy it before several write there."""
        self._scratch.begin_afresh(aside)
        try:
            executor.describe()
        except GroupLost:
            pass  # and so is each that is started next, whose calls fail
        finally:
            executor.retire()

    def _call_all(self, processes_: _Processes, jobs: Sequence[Jobs]) -> None:
        families = {processes_.call(one.first): one.families for one in jobs}
        others: dict[Future[_Called], Sequence[Job]] = {}
        pending: set[Future[_Called]] = set(families)
        while pending:
            ready, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in ready:
                called = future.result()
                self._took(called)
                pending |= {processes_.call(job) for job in others.pop(future, ())}
                if called.compiles and future in families:
                    self.implementations.add(called.job.info.name)
                    ahead = {processes_.call(one): rest for one, *rest in families[future]}
                    others |= ahead
                    pending |= ahead.keys()

    def _took(self, called: _Called) -> None:
        self.first_s[called.job.case.id, called.job.info.name] = called.first_s
        if called.wall_s > self.longest_s:
            self.longest_s, self.longest_of = called.wall_s, called.job.info.name

    def lend(self, executor: WorkerExecutor, sandbox: str) -> None:
        """Have the next worker of a pass begin with what was compiled for its kind.

        sandbox: what holds the workers; where it does not keep files, a candidate could have
        written to what the clean ones would begin with.
        """
        if not self.first_s:
            return
        executor.compiled_s = self.first_s
        if executor.is_clean and not sandbox.startswith("files"):
            return
        executor.borrow(self._scratch)
        self._scratch.begin_afresh(self._aside[executor.is_clean])

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()
        for aside in self._aside.values():
            remove(aside)
        self._scratch.remove()


def processes(plan: Plan, room_bytes: int) -> int:
    """How many compile at once: as many as there are cores for them, and room on the device for
    their contexts twice."""
    cores = len(os.sched_getaffinity(0)) // max(1, plan.neighbours)
    return max(0, min(cores - 1, room_bytes // (2 * CONTEXT_BYTES), MOST_PROCESSES))


@dataclass(frozen=True)
class _Called:
    job: Job
    first_s: float = 0.0
    compiles: bool = False
    wall_s: float = 0.0  # with the start of its process


class _Room:
    """Bytes of the device, for whoever waits for them. What is larger than all of it has all."""

    def __init__(self, size: int) -> None:
        self._size = self._left = max(size, 1)
        self._changed = Condition()

    @contextmanager
    def for_(self, size: int) -> Iterator[None]:
        size = min(size, self._size)
        with self._changed:
            self._changed.wait_for(lambda: self._left >= size)
            self._left -= size
        try:
            yield
        finally:
            with self._changed:
                self._left += size
                self._changed.notify_all()


class _Processes:
    """So many workers; each call takes the one that is free, when there is room for its case."""

    def __init__(self, executor: WorkerExecutor, count: int, room_bytes: int) -> None:
        self._room = _Room(room_bytes - count * CONTEXT_BYTES)
        self._all = [executor.sibling() for _ in range(count)]
        self._free: SimpleQueue[WorkerExecutor] = SimpleQueue()
        for one in self._all:
            self._free.put(one)
        self._threads = ThreadPoolExecutor(count)
        self._calls: list[Future[_Called]] = []
        self._ended_by: set[str] = set()  # implementations: the next call would end the next

    def __enter__(self) -> _Processes:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        # Of those still waited for, since this was interrupted, some are only about to be started.
        while left := [call for call in self._calls if not call.done()]:
            for one in self._all:
                one.kill()
            wait(left, timeout=KILL_EVERY_S)
        for one in self._all:
            one.close()

    def call(self, job: Job) -> Future[_Called]:
        called = self._threads.submit(self._call, job)
        self._calls.append(called)
        return called

    def _call(self, job: Job) -> _Called:
        if job.info.name in self._ended_by:
            return _Called(job)
        with self._room.for_(SETS * ops.work(job.case).bytes_min):
            executor = self._free.get()
            began = time.monotonic()
            try:
                compiled = executor.compile(job.case, job.info.name, job.limit_s)
            except GroupLost:
                self._ended_by.add(job.info.name)
                return _Called(job, wall_s=time.monotonic() - began)
            finally:
                self._free.put(executor)
        compiles = compiled.first_s - compiled.second_s >= COMPILES_S
        return _Called(job, compiled.first_s, compiles, time.monotonic() - began)


def _jobs(plan: Plan, cells: Mapping[str, Iterable[str]]) -> dict[bool, list[Jobs]]:
    """Of each implementation but the controls; by whether a worker calls it that imports no
    candidate."""
    clean = clean_sources(plan)
    jobs: dict[ImplementationInfo, dict[str, Job]] = {}
    for case_id, names in cells.items():
        case = plan.by_id[case_id].case
        for name in names:
            info = plan.info(case.op, name)
            if _may_compile(info):
                launched = json.dumps(case.content)  # however it is timed
                jobs.setdefault(info, {}).setdefault(launched, Job(case, info))
    by_kind: dict[bool, list[Jobs]] = {True: [], False: []}
    for info, of_one in jobs.items():
        is_clean = info.role is Role.BASELINE and info.source in clean
        by_kind[is_clean].append(_in_turn(list(of_one.values())))
    return by_kind


def _may_compile(info: ImplementationInfo) -> bool:
    """Kernels that later processes find in a cache. What candidates do is not known before. Most
    controls share theirs with others."""
    if info.role is Role.CONTROL or Runs.CUDA not in info.devices:
        return False
    return info.role is Role.CANDIDATE or bool(info.compiled_by)


def _in_turn(jobs: Sequence[Job]) -> Jobs:
    """The smallest case, then the others by family. A backward has its forward's kernels as well,
    so it is what goes ahead."""
    smallest = min(jobs, key=_bytes)
    families: dict[str, list[Job]] = {}
    for job in jobs:
        if job is not smallest:
            families.setdefault(_family(job.case), []).append(job)
    for family in families.values():
        family.sort(key=lambda job: (not job.case.direction.differentiates, _bytes(job)))
    return Jobs(smallest, list(families.values()))


def _bytes(job: Job) -> int:
    return ops.work(job.case).bytes_min


def _family(case: Case) -> str:
    """What cases share that differ in length and direction alone."""
    axis = ops.get(case.op).length_axis
    shape = {size: n for size, n in case.shape.items() if size != axis}
    return json.dumps([case.op, shape, case.dtype, case.distribution, case.streams])
