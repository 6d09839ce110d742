"""Workers that compile at once, and the room that they have on the device."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from operator import itemgetter
from queue import SimpleQueue
from threading import Condition

from nsabench import labels, ops
from nsabench.errors import NsabenchError
from nsabench.machine.memory import memory_of
from nsabench.running.compilation.jobs import Job
from nsabench.running.supervisor.death import WorkerLost
from nsabench.running.supervisor.executor import WorkerExecutor

MOST_PROCESSES = 16
CONTEXT_BYTES = 1 << 30  # of a process on the device, before it holds anything
HOST_BYTES = 3 << 30  # that a process may take of the host, with torch and a compiler
SETS = 6  # times what a case's inputs and outputs take, for what is saved and set aside
# A first call that took so much longer than the second compiled something, or chose a variant.
COMPILES_S = 0.15
# Of all calls by one kind of workers: then none is begun.
MOST_S = 450.0
KILL_EVERY_S = 0.2  # of an interrupted one
# Names how many shards are measured at once on this host and share its cores (`fleet.devices`).
SHARDS_ON_HOST = "NSABENCH_SHARDS_ON_HOST"


def most(room_bytes: int) -> int:
    """How many compile at once: as many as there are cores and memory for them, and room on the
    device for their contexts twice."""
    shards = int(os.environ.get(SHARDS_ON_HOST, "1"))
    cores = len(os.sched_getaffinity(0)) // shards
    on_device = room_bytes // (2 * CONTEXT_BYTES)
    host_bytes = memory_of("cpu")
    on_host = host_bytes // shards // HOST_BYTES if host_bytes is not None else MOST_PROCESSES
    return max(0, min(cores - 1, on_device, on_host, MOST_PROCESSES))


@dataclass(frozen=True)
class Called:
    job: Job
    first_s: float = 0.0
    compiles: bool = False
    is_unsupported: bool = False
    wall_s: float = 0.0  # with the start of its process


class Room:
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


class Processes:
    """So many workers; each call takes the one that is free, when there is room for its case."""

    def __init__(self, executor: WorkerExecutor, count: int, room_bytes: int) -> None:
        self._whose = "baselines" if executor.is_clean else "with the candidates"
        self._room = Room(room_bytes - count * CONTEXT_BYTES)
        self._all = [executor.sibling() for _ in range(count)]
        self._free: SimpleQueue[WorkerExecutor] = SimpleQueue()
        for one in self._all:
            self._free.put(one)
        self._threads = ThreadPoolExecutor(count)
        self._calls: list[Future[Called]] = []
        self._ended_by: set[str] = set()  # implementations: the next call would end the next
        self._in_flight: dict[WorkerExecutor, tuple[float, Job]] = {}  # what, and since when
        self._ends_at = time.monotonic() + MOST_S

    def __enter__(self) -> Processes:
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

    def call(self, job: Job) -> Future[Called]:
        called = self._threads.submit(self._call, job)
        self._calls.append(called)
        return called

    def progress(self) -> str:
        """How many calls came back, and which has gone on for the longest. How many there will be
        nobody knows: only who compiles is called on all cases."""
        done = [call.result() for call in self._calls if call.done()]
        made = sum(called.wall_s > 0 for called in done)
        said = f"compiling ahead, {self._whose}: {made} calls are done"
        in_flight = list(self._in_flight.values())
        if not in_flight:
            return said
        since, job = min(in_flight, key=itemgetter(0))
        for_s = time.monotonic() - since
        return f"{said}; {job.info.name} on {labels.of_case(job.case)} goes on for {for_s:.0f} s"

    def _call(self, job: Job) -> Called:
        if job.info.name in self._ended_by or time.monotonic() >= self._ends_at:
            return Called(job)  # it is compiled when it is measured
        with self._room.for_(SETS * ops.work(job.case).bytes_min):
            executor = self._free.get()
            began = time.monotonic()
            self._in_flight[executor] = began, job
            try:
                compiled = executor.compile(job.case, job.info.name, job.limit_s)
            except (WorkerLost, NsabenchError):  # it is measured, and fails again
                self._ended_by.add(job.info.name)
                return Called(job, wall_s=time.monotonic() - began)
            finally:
                del self._in_flight[executor]
                self._free.put(executor)
        wall_s = time.monotonic() - began
        first_s = min(max(compiled.first_s, 0.0), wall_s)  # foreign code may have said it
        compiles = first_s - compiled.second_s >= COMPILES_S
        return Called(job, first_s, compiles, compiled.is_unsupported, wall_s)
