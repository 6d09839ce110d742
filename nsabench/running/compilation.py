"""Compile kernels ahead of all timing, in several processes, since a compiler uses one core.

Workers call the implementations, which fills caches, and later workers begin with these caches. A
call that fails here is ignored: it fails again when it is measured.
"""

from __future__ import annotations

import json
import os
import time
from collections import deque
from collections.abc import Hashable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Condition

from nsabench import ops
from nsabench.errors import EnvironmentRefused, NsabenchError
from nsabench.machine.environment.collect import memory_of
from nsabench.model.case import Case
from nsabench.model.job import Job
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Role, Runs
from nsabench.running.clients import Note, Scratch, TemporaryFolder, WorkerClient
from nsabench.running.executor import Executor
from nsabench.running.process import WorkerLost

SHARE = 0.7  # all processes together may take this share of the device's memory
WORTH_IT = 4  # for fewer cases no kernels are compiled ahead
MOST_PROCESSES = 16
CONTEXT_BYTES = 1 << 30  # device memory of a CUDA context
HOST_BYTES = 3 << 30  # host memory of a process with torch and a compiler
SETS = 6  # device memory of a call, as a multiple of its compulsory bytes
CALL_LIMIT_S = 300.0  # FlashInfer compiles for minutes while other processes compile too
MOST_S = 450.0  # after this time, workers begin no call
SAY_EVERY_S = 30.0
# This variable has the number of shards that share the cores of this host (`fleet.devices`).
SHARDS_ON_HOST = "NSABENCH_SHARDS_ON_HOST"


@dataclass(frozen=True)
class FirstCall:
    case: Case
    info: ImplementationInfo
    probes: bool = False  # whether the probes of the case are also called

    @property
    def limit_s(self) -> float:
        is_candidate = self.info.role is Role.CANDIDATE
        return min(self.case.timeout_s, CALL_LIMIT_S) if is_candidate else CALL_LIMIT_S


# Calls of one implementation on cases that differ only in length and direction. The first is made
# alone, since each of several calls at once would compile the kernels that they share.
Family = list[FirstCall]


def families_of(plan: Plan, left: Sequence[Job]) -> dict[bool, list[Family]]:
    """Return the calls to make. The key is True for calls in workers that import no candidate."""
    families: dict[Hashable, dict[str, FirstCall]] = {}
    for job in left:
        case = plan.case_or_canary(job.case.id).case
        for name in job.implementations:
            info = plan.info(case.op, name)
            # Controls are left out, since they share the kernels of other implementations.
            compiled_by = info.role is not Role.CONTROL and info.compiled_by
            if Runs.CUDA in info.devices and (info.role is Role.CANDIDATE or compiled_by):
                key = info, ops.sizes_but_length(case), case.dtype, case.distribution
                content = json.dumps(case.content)  # equal for cases that differ only in timing
                families.setdefault(key, {}).setdefault(content, FirstCall(case, info))
    by_kind: dict[bool, list[Family]] = {True: [], False: []}
    for by_content in families.values():
        family = sorted(by_content.values(), key=_order)
        # Only the first call of each series (cases that differ only in length) also runs probes.
        first = {ops.series_key(call.case): call for call in reversed(family)}
        family = [replace(call, probes=call in first.values()) for call in family]
        info = family[0].info
        is_clean = info.role is Role.BASELINE and info.source in plan.clean_sources
        by_kind[is_clean].append(family)
    return by_kind


def _order(call: FirstCall) -> tuple[bool, int]:
    # Sort calls with gradients before forwards, and then small cases before large ones.
    return not call.case.direction.differentiates, ops.work(call.case).bytes_min


class CompileAhead:
    """Compiles ahead of the passes of a run, and lends the caches to their workers."""

    def __init__(self, plan: Plan, run: Path) -> None:
        self._plan = plan
        self._workers = {  # the key True is for workers without candidates
            True: WorkerClient.from_plan(plan, run, plan.clean_sources),
            False: WorkerClient.from_plan(plan, run),
        }
        self._aside: dict[bool, TemporaryFolder] = {}
        self._is_done = False
        self.first_s: dict[tuple[str, str], float] = {}  # by case id and implementation
        self.wall_s = 0.0

    @property
    def scratch(self) -> Scratch:
        return self._workers[True].scratch

    def compile(self, left: Sequence[Job], memory_bytes: int | None, note: Note) -> None:
        room_bytes = int(SHARE * (memory_bytes or 0))
        count = most_processes(room_bytes)
        few = len({job.case.id for job in left}) < WORTH_IT or count < 2
        if self._plan.device != "cuda" or few or self._is_done:
            return
        families = families_of(self._plan, left)
        if any(families.values()):
            note(f"compiling ahead in {count} processes")
            self.call(families, count, room_bytes, note)
            names = {name for _, name in self.first_s}
            note(f"compiling ahead took {self.wall_s:.0f} s for {len(names)} implementations")

    def call(
        self, families: Mapping[bool, Sequence[Family]], count: int, room_bytes: int, note: Note
    ) -> None:
        """Make the calls in `count` processes that take at most `room_bytes` of device memory."""
        began = time.monotonic()
        self._workers[False].borrow(self.scratch)  # caches hold paths: all use one folder
        for is_clean, worker in self._workers.items():
            if not is_clean and self._plan.sandboxed:  # unsandboxed, all use the user's caches
                self._copy_caches(self._aside[True], worker)
            pool = _Pool(worker, count, room_bytes)
            try:
                pool.call_all(families[is_clean], note)
            finally:
                pool.close()
            self.first_s |= pool.first_s
            self._aside[is_clean] = self.scratch.put_aside()  # no candidate alters caches there
        self._is_done = True
        self.wall_s = time.monotonic() - began

    def _copy_caches(self, aside: TemporaryFolder, worker: WorkerClient) -> None:
        """Have one worker copy the caches before several workers write to the folder."""
        self.scratch.begin_afresh(aside)
        try:
            worker.describe()
        except EnvironmentRefused:
            pass  # caches that were not copied are compiled again
        finally:
            worker.retire()

    def lend(self, executor: Executor, sandbox: str) -> None:
        """Have the executor's next worker begin with the caches that fit its sources."""
        if not self._is_done:
            return
        executor.compiled_s = self.first_s
        is_clean = executor.worker.is_clean
        # A sandbox that does not protect files lets a candidate alter the clean caches.
        if not self._plan.sandboxed or (is_clean and not sandbox.startswith("files")):
            return
        executor.worker.borrow(self.scratch)
        self.scratch.begin_afresh(self._aside[is_clean])

    def close(self) -> None:
        for worker in self._workers.values():
            worker.close()
        for aside in self._aside.values():
            aside.remove()


def most_processes(room_bytes: int) -> int:
    shards = int(os.environ.get(SHARDS_ON_HOST, "1"))
    cores = len(os.sched_getaffinity(0)) // shards
    on_device = room_bytes // (2 * CONTEXT_BYTES)
    host_bytes = memory_of("cpu")
    on_host = host_bytes // shards // HOST_BYTES if host_bytes is not None else MOST_PROCESSES
    return max(0, min(cores - 1, on_device, on_host, MOST_PROCESSES))


class Room:
    def __init__(self, size: int) -> None:
        self._size = self._left = max(size, 1)
        self._changed = Condition()

    @contextmanager
    def take(self, size: int) -> Iterator[None]:
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


class _Pool:
    def __init__(self, worker: WorkerClient, count: int, room_bytes: int) -> None:
        self.first_s: dict[tuple[str, str], float] = {}
        self._room = Room(room_bytes - count * CONTEXT_BYTES)
        self._workers = [worker.sibling() for _ in range(count)]
        self._free = deque(self._workers)  # enough, since each thread takes at most one
        self._threads = ThreadPoolExecutor(count)
        self._futures: list[Future[object]] = []
        self._fatal: set[str] = set()  # implementations that ended their worker, not called again
        self._ends_at = time.monotonic() + MOST_S

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        if left := self._list_pending():  # the calls were interrupted
            for worker in self._workers:
                worker.kill()
            wait(left)
        for worker in self._workers:
            worker.close()

    def call_all(self, families: Sequence[Family], note: Note) -> None:
        self._futures += [self._threads.submit(self._call_family, family) for family in families]
        while left := self._list_pending():
            if wait(left, timeout=SAY_EVERY_S).not_done:
                note(f"compiling ahead: {len(self.first_s)} calls are done")
        for future in self._futures:
            future.result()

    def _list_pending(self) -> list[Future[object]]:
        return [future for future in self._futures if not future.done()]

    def _call_family(self, family: Family) -> None:
        self._call(family[0])
        self._futures += [self._threads.submit(self._call, call) for call in family[1:]]

    def _call(self, call: FirstCall) -> None:
        name = call.info.name
        if name in self._fatal or time.monotonic() >= self._ends_at:
            return
        with self._room.take(SETS * ops.work(call.case).bytes_min):
            worker = self._free.popleft()
            began = time.monotonic()
            try:
                first_s = worker.compile(call.case, name, call.limit_s, probes=call.probes).first_s
            except (WorkerLost, NsabenchError):
                self._fatal.add(name)
                first_s = 0.0
            finally:
                self._free.append(worker)
        # A worker runs foreign code, so the time that it sent may be false. Bound the time.
        self.first_s[call.case.id, name] = min(max(first_s, 0.0), time.monotonic() - began)
