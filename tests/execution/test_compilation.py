"""Kernels are compiled ahead where workers find them, and nothing else comes of it."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from nsabench.execution import compilation
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Status
from tests.execution.supervisor import compiling
from tests.execution.supervisor.conftest import MakePlan, make_plan
from tests.execution.supervisor.test_hostile import leftovers

__all__ = ["make_plan"]
KERNELS = Path(compiling.__file__)
LENGTHS = (16, 32, 64, 128)
ROOM = 80 << 30


@pytest.fixture
def executor() -> Iterator[WorkerExecutor]:
    with closing(WorkerExecutor("cpu", KERNELS)) as made:
        yield made


def cells(plan: Plan) -> dict[str, list[str]]:
    return {planned.id: list(planned.implementations) for planned in plan.cases}


def calls(executor: WorkerExecutor) -> list[list[str]]:
    lines = (Path(executor.folder()) / "tmp/calls").read_text().splitlines()
    return [line.split() for line in lines]


def test_who_compiles_is_called_on_all_cases_and_who_does_not_on_one(
    make_plan: MakePlan, executor: WorkerExecutor
) -> None:
    plan = make_plan(["compiles", "ready_made", "sdpa_gqa"], lengths=LENGTHS, timeout_s=30)
    done = compilation.compiled(plan, cells(plan), executor, 2, ROOM)

    assert done.implementations == {"compiles"}
    made = calls(executor)
    lengths_of = {name: {call[1] for call in made if call[0] == name} for name, *_ in made}
    assert lengths_of == {"compiles": set(map(str, LENGTHS)), "ready_made": {"16"}}
    assert len({call[2] for call in made}) == 2  # processes
    took = [s for (_, name), s in done.first_s.items() if name == "compiles"]
    assert len(took) == len(LENGTHS)
    assert min(took) >= compiling.COMPILES_S
    assert done.wall_s > 0
    assert leftovers() == []


def test_the_worker_that_measures_finds_it_and_its_record_says_what_it_took(
    make_plan: MakePlan, executor: WorkerExecutor
) -> None:
    plan = make_plan(["compiles"], timeout_s=30)
    executor.compiled_s = compilation.compiled(plan, cells(plan), executor, 2, ROOM).first_s
    [planned] = plan.cases
    began = time.monotonic()
    [outcome] = executor.measure(planned.case, ["compiles"], 1).outcomes
    assert outcome.status is Status.OK, outcome.reason
    assert outcome.compile_s is not None
    assert compiling.COMPILES_S <= outcome.compile_s <= time.monotonic() - began + 5
    kernels = list(Path(executor.folder()).glob("triton/of_*"))
    assert [kernel.name for kernel in kernels] == ["of_16"]


@pytest.mark.parametrize("name", ["ends_its_process", "never_ends", "fails"])
def test_who_fails_is_called_once_and_the_others_are_compiled(
    make_plan: MakePlan, executor: WorkerExecutor, name: str
) -> None:
    plan = make_plan([name, "compiles"], lengths=LENGTHS)
    done = compilation.compiled(plan, cells(plan), executor, 2, ROOM)
    assert done.implementations == {"compiles"}
    assert len([call for call in calls(executor) if call[0] == name]) == 1
    assert leftovers() == []


def test_an_interrupt_ends_all_processes(
    make_plan: MakePlan, executor: WorkerExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(pending: set[Any], **_: object) -> None:
        monkeypatch.undo()
        while not any(one.running() for one in pending):
            time.sleep(0.05)
        raise KeyboardInterrupt  # while a process is about to be started

    monkeypatch.setattr(compilation, "wait", interrupted)
    plan = make_plan(["never_ends", "compiles"], lengths=LENGTHS, timeout_s=600)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        compilation.compiled(plan, cells(plan), executor, 1, ROOM)
    assert time.monotonic() - began < 60  # 600 without
    assert leftovers() == []


def test_a_cpu_compiles_nothing_ahead(make_plan: MakePlan, executor: WorkerExecutor) -> None:
    plan = make_plan(["compiles"], lengths=(*LENGTHS, 256))
    notes: list[str] = []
    done = compilation.ahead(plan, cells(plan), executor, 80 << 30, notes.append)
    assert (done.first_s, notes) == ({}, [])


def test_processes_are_as_many_as_cores_and_memory_allow(
    make_plan: MakePlan, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = make_plan(["compiles"])
    monkeypatch.setattr(compilation.os, "sched_getaffinity", lambda _: set(range(16)))
    assert compilation.processes(plan, 80 << 30) == compilation.MOST_PROCESSES
    assert compilation.processes(plan, 8 << 30) == 4
    assert compilation.processes(plan, 0) == 0
    beside = plan.model_copy(update={"neighbours": 4})
    assert compilation.processes(beside, 80 << 30) == 3


def test_a_large_case_waits_for_the_others_and_these_for_it() -> None:
    """Three processes compiled what twelve could, since the largest case was taken for all."""
    room, together, most = compilation._Room(10), 0, {1: 0, 4: 0, 99: 0}
    lock = threading.Lock()

    def take(size: int) -> None:
        nonlocal together
        with room.for_(size):
            with lock:
                together += 1
                most[size] = max(most[size], together)
            time.sleep(0.05)
            with lock:
                together -= 1

    for size, count in ((1, 8), (4, 4), (99, 3)):
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(take, [size] * count))
    assert most == {1: 8, 4: 2, 99: 1}
