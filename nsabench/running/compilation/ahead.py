"""What was compiled ahead, and which of it a pass begins with."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path

from nsabench.model.job import Job as MeasuringJob
from nsabench.model.plan import Plan
from nsabench.running.compilation import processes
from nsabench.running.compilation.jobs import Job, Jobs, jobs_of
from nsabench.running.compilation.processes import Called, Processes
from nsabench.running.supervisor.death import WorkerLost
from nsabench.running.supervisor.executor import WorkerExecutor
from nsabench.running.supervisor.scratch import Scratch
from nsabench.running.supervisor.temporary import TemporaryFolder

SHARE = 0.7  # of the device's memory that all of them may take
SAY_EVERY_S = 30.0  # how far they have come
WORTH_IT = 4  # cases; fewer are compiled as they come


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
            True: WorkerExecutor.of_plan(plan, run, plan.clean_sources),
            False: WorkerExecutor.of_plan(plan, run),
        }
        self._aside: dict[bool, TemporaryFolder] = {}
        self._is_done = False
        self.first_s: dict[tuple[str, str], float] = {}
        self.implementations: set[str] = set()
        self.wall_s = 0.0
        self.longest_s = 0.0
        self.longest_of = ""

    @property
    def _scratch(self) -> Scratch:
        """One for both kinds and all passes, one after another: some caches hold its path."""
        return self._executors[True].scratch

    def compile(
        self,
        left: Sequence[MeasuringJob],
        memory_bytes: int | None,
        note: Callable[[str], None],
    ) -> None:
        """Compile what the jobs that are left need, once, where that is worth the processes.

        memory_bytes: of the device.
        """
        cells: dict[str, list[str]] = {}
        for job in left:
            cells.setdefault(job.case.id, []).extend(job.implementations)
        room_bytes = int(SHARE * (memory_bytes or 0))
        count = processes.most(room_bytes)
        few = len(cells) < WORTH_IT or count < 2
        if self._plan.device != "cuda" or few or self._is_done:
            return
        jobs = jobs_of(self._plan, cells)
        if not any(jobs.values()):
            return
        note(f"compiling ahead in {count} processes")
        self.call(jobs, count, room_bytes, note)
        note(
            f"kernels of {len(self.implementations)} implementations were compiled ahead in "
            f"{self.wall_s:.0f} s; the longest call took {self.longest_s:.0f} s ({self.longest_of})"
        )

    def call(
        self,
        jobs: Mapping[bool, Sequence[Jobs]],
        count: int,
        room_bytes: int,
        note: Callable[[str], None],
    ) -> None:
        """Have them called in `count` processes, which take no more of the device together than
        there is room, and put aside what that leaves in caches.

        The smallest case of an implementation comes first: by how much longer its first call takes
        than its second one sees whether it compiles, and only then are its other cases called. Who
        is declared to compile is called on a case of each family at once. Of those that differ in
        length and direction alone one goes ahead: the others find most of its kernels, and at once
        with it each would compile them, too.
        """
        began = time.monotonic()
        self._executors[False].borrow(self._scratch)
        for clean, executor in self._executors.items():
            if not clean and self._plan.sandboxed:  # else all share the user's own caches
                self._begin_with(self._aside[True], executor)
            with Processes(executor, count, room_bytes) as processes_:
                self._call_all(processes_, jobs[clean], note)
            self._aside[clean] = self._scratch.put_aside()
        self._is_done = True
        self.wall_s = time.monotonic() - began

    def _begin_with(self, aside: TemporaryFolder, executor: WorkerExecutor) -> None:
        """Have one worker copy it before several write there."""
        self._scratch.begin_afresh(aside)
        try:
            executor.describe()
        except WorkerLost:
            pass  # what it did not copy is compiled again
        finally:
            executor.retire()

    def _call_all(
        self, processes_: Processes, jobs: Sequence[Jobs], note: Callable[[str], None]
    ) -> None:
        said = time.monotonic()
        firsts = {processes_.call(one.first): one for one in jobs}
        others: dict[Future[Called], Sequence[Job]] = {}

        def begin(families: Sequence[Sequence[Job]]) -> set[Future[Called]]:
            ahead = {processes_.call(job): rest for job, *rest in filter(None, families)}
            others.update(ahead)
            return set(ahead)

        pending = set(firsts).union(*(begin(one.families) for one in jobs if one.is_declared))
        while pending:
            left_s = max(said + SAY_EVERY_S - time.monotonic(), 0.0)
            ready, pending = wait(pending, timeout=left_s, return_when=FIRST_COMPLETED)
            if time.monotonic() >= said + SAY_EVERY_S:
                note(processes_.progress())
                said = time.monotonic()
            for future in ready:
                called = future.result()
                self._took(called)
                pending |= {processes_.call(job) for job in others.pop(future, ())}
                one = firsts.pop(future, None)
                if one is None:
                    continue
                if one.is_declared:
                    pending |= begin([one.own])
                elif called.compiles:
                    pending |= begin([one.own, *one.families])
                elif called.is_unsupported and (rest := one.without_first()) is not None:
                    retry = processes_.call(rest.first)
                    firsts[retry] = rest
                    pending.add(retry)

    def _took(self, called: Called) -> None:
        self.first_s[called.job.case.id, called.job.info.name] = called.first_s
        if called.compiles:
            self.implementations.add(called.job.info.name)
        if called.wall_s > self.longest_s:
            self.longest_s, self.longest_of = called.wall_s, called.job.info.name

    def lend(self, executor: WorkerExecutor, sandbox: str) -> None:
        """Have the next worker of a pass begin with what was compiled for its kind.

        sandbox: what holds the workers; where it does not keep files, a candidate could have
        written to what the clean ones would begin with.
        """
        if not self._is_done:
            return
        executor.credit(self.first_s)
        if not self._plan.sandboxed or (executor.is_clean and not sandbox.startswith("files")):
            return
        executor.borrow(self._scratch)
        self._scratch.begin_afresh(self._aside[executor.is_clean])

    def close(self) -> None:
        for executor in self._executors.values():
            executor.close()
        for aside in self._aside.values():
            aside.remove()
