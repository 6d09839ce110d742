"""Kernels of a pass compiled ahead, by several processes at once, before any of it is timed.

A compiler keeps one core busy, and a pass that meets each kernel when it times it waits for one
compiler after the other. Here every implementation that compiles is called on each of its cases
first. What that leaves is in the caches of the pass's workers; nothing else of it counts: what
fails here fails again where it is measured, and is recorded there.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from queue import SimpleQueue
from threading import Condition

from nsabench import ops
from nsabench.execution.supervisor.executor import GroupLost, WorkerExecutor
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
LIMIT_S = 120.0  # of one call, however long its case may take


@dataclass(frozen=True)
class Job:
    case: Case
    info: ImplementationInfo


@dataclass
class Ahead:
    """What was compiled. first_s: seconds of first calls, by case and implementation."""

    first_s: dict[tuple[str, str], float] = field(default_factory=dict)
    implementations: set[str] = field(default_factory=set)
    wall_s: float = 0.0
    longest_s: float = 0.0
    longest_of: str = ""


def ahead(
    plan: Plan,
    cells: Mapping[str, Iterable[str]],
    executor: WorkerExecutor,
    memory_bytes: int | None,
    note: Callable[[str], None],
) -> Ahead:
    """Compile what cells (implementations by case id) need, where that is worth the processes.

    memory_bytes: of the device. The executor is told what first calls took.
    """
    room_bytes = int(SHARE * (memory_bytes or 0))
    count = processes(plan, room_bytes)
    if plan.device != "cuda" or len(cells) < WORTH_IT or count < 2:
        return Ahead()
    note(f"compiling ahead in {count} processes")
    done = compiled(plan, cells, executor, count, room_bytes)
    executor.compiled_s = done.first_s
    note(
        f"kernels of {len(done.implementations)} implementations were compiled ahead in "
        f"{done.wall_s:.0f} s; the longest call took {done.longest_s:.0f} s ({done.longest_of})"
    )
    return done


def processes(plan: Plan, room_bytes: int) -> int:
    """How many compile at once: as many as there are cores for them, and room on the device for
    their contexts twice."""
    cores = len(os.sched_getaffinity(0)) // max(1, plan.neighbours)
    return max(0, min(cores - 1, room_bytes // (2 * CONTEXT_BYTES), MOST_PROCESSES))


def compiled(
    plan: Plan,
    cells: Mapping[str, Iterable[str]],
    executor: WorkerExecutor,
    count: int,
    room_bytes: int,
) -> Ahead:
    """Compile it in `count` processes that share the caches of the executor's worker, and take no
    more of the device together than there is room.

    The smallest case of an implementation comes first: by how much longer its first call takes than
    its second one sees whether it compiles, and only then are its other cases called.
    """
    began = time.monotonic()
    done = Ahead()
    with _Processes(executor, count, room_bytes) as processes_:
        others = {processes_.call(jobs[0]): jobs[1:] for jobs in _jobs(plan, cells)}
        pending: set[Future[_Called]] = set(others)
        while pending:
            ready, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in ready:
                called = future.result()
                name = called.job.info.name
                done.first_s[called.job.case.id, name] = called.first_s
                if called.wall_s > done.longest_s:
                    done.longest_s, done.longest_of = called.wall_s, name
                if called.compiles and future in others:
                    done.implementations.add(name)
                    pending |= {processes_.call(job) for job in others[future]}
    done.wall_s = time.monotonic() - began
    return done


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
                limit_s = min(job.case.timeout_s, LIMIT_S)
                compiled = executor.compile(job.case, job.info.name, limit_s)
            except GroupLost:
                self._ended_by.add(job.info.name)
                return _Called(job, wall_s=time.monotonic() - began)
            finally:
                self._free.put(executor)
        compiles = compiled.first_s - compiled.second_s >= COMPILES_S
        return _Called(job, compiled.first_s, compiles, time.monotonic() - began)


def _jobs(plan: Plan, cells: Mapping[str, Iterable[str]]) -> list[Sequence[Job]]:
    """Of each implementation but the controls, the smallest case first. The others are in no order:
    cases that lie beside each other share most of their kernels, and would compile them twice."""
    jobs: dict[ImplementationInfo, dict[str, Job]] = {}
    for case_id, names in cells.items():
        case = plan.by_id[case_id].case
        for name in names:
            info = plan.info(case.op, name)
            if _may_compile(info):
                launched = json.dumps(case.content)  # however it is timed
                jobs.setdefault(info, {}).setdefault(launched, Job(case, info))
    return [_smallest_first(list(of_one.values())) for of_one in jobs.values()]


def _may_compile(info: ImplementationInfo) -> bool:
    """Kernels that later processes find in a cache. What candidates do is not known before. Most
    controls share theirs with others."""
    if info.role is Role.CONTROL or Runs.CUDA not in info.devices:
        return False
    return info.role is Role.CANDIDATE or bool(info.compiled_by)


def _smallest_first(jobs: list[Job]) -> list[Job]:
    smallest = min(jobs, key=lambda job: ops.work(job.case).bytes_min)
    return [smallest, *sorted((j for j in jobs if j is not smallest), key=lambda j: j.case.id)]
