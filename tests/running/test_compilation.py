"""Kernels are compiled ahead into caches that workers use, without other effects."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from nsabench import registry
from nsabench.model.vocabulary import Status
from nsabench.running import compilation
from nsabench.running.compilation import CompileAhead, families_of
from nsabench.running.policy import next_jobs, plan_canary
from nsabench.worker.protocol import Measured
from tests import main_pass
from tests.running import compiling
from tests.running.test_hostile import leftovers
from tests.runs import log_of

KERNELS = Path(compiling.__file__)
LENGTHS = (16, 32, 64, 128)
CALLED = {*LENGTHS, 63, 65, 253}  # with lengths of probes
ROOM = 80 << 30


@pytest.fixture
def begun(make_plan, tmp_path):
    with ExitStack() as stack:

        def begin(names, **sizes):
            plan = make_plan(names, kernels=KERNELS, **sizes)
            ahead = stack.enter_context(closing(CompileAhead(plan, tmp_path / "run")))
            return plan, ahead

        yield begin


def cells(plan):
    return families_of(plan, next_jobs(plan, log_of(plan)))


def calls(ahead, *, clean=False):
    [kept] = Path(aside(ahead, clean=clean)).glob("tmp/calls")
    return [line.split() for line in kept.read_text().splitlines()]


def aside(ahead, *, clean):
    """Return the folder of what was compiled ahead."""
    return ahead._aside[clean].name + "/scratch"


def test_candidates_are_called_on_all_cases_and_baselines_that_do_not_compile_on_none(begun):
    plan, done = begun(["compiles", "sdpa_gqa"], lengths=LENGTHS, timeout_s=30)
    done.call(cells(plan), 2, ROOM, print)

    made = calls(done)
    assert {(call[0], call[1]) for call in made} == {("compiles", str(n)) for n in CALLED}
    assert len({call[2] for call in made}) == 2  # processes
    assert {name for _, name in done.first_s} == {"compiles"}
    assert len(done.first_s) == len(LENGTHS)
    assert min(done.first_s.values()) >= compiling.COMPILES_S
    assert done.wall_s > 0
    assert leftovers() == []


def test_families_are_called_at_once(begun):
    plan, done = begun(["waits_for_the_other"], lengths=(16, 32), timeout_s=120)
    small, large = plan.cases
    case = large.case.model_copy(update={"shape": {**large.case.shape, "N": 8}})
    other = large.model_copy(update={"id": case.id, "case": case})
    plan = plan.model_copy(update={"cases": [small, other]})
    done.call(cells(plan), 2, ROOM, print)
    assert {case_id for case_id, _ in done.first_s} == {small.id, case.id}
    assert min(done.first_s.values()) > 0  # neither call failed


def test_of_one_family_nobody_is_called_beside_the_first(begun):
    """Two calls at once would both compile the same kernels."""
    plan, done = begun(["compiles"], lengths=LENGTHS, timeout_s=30)
    [family] = cells(plan)[False]
    assert [call.case.shape["L"] for call in family] == [*LENGTHS]
    done.call({True: [], False: [family]}, 2, ROOM, print)
    assert calls(done)[0][1] == "16"
    assert {call[1] for call in calls(done)} == set(map(str, CALLED))


def test_only_the_shortest_case_of_a_series_is_compiled_with_its_probes(begun):
    plan, _ = begun(["compiles"], lengths=LENGTHS)
    [family] = cells(plan)[False]
    assert [(call.case.shape["L"], call.probes) for call in family] == [
        (length, length == LENGTHS[0]) for length in LENGTHS
    ]


def test_the_case_that_all_shards_measure_is_compiled_ahead_as_well(make_plan):
    """The canary need not be one of the shard's cases."""
    whole = make_plan(["compiles"], lengths=(16, 32))
    canary, own = whole.cases
    shard = whole.model_copy(update={"cases": [own], "canary": canary})
    log = log_of(shard)
    calls = families_of(shard, [*next_jobs(shard, log), *plan_canary(shard, log)])
    [family] = calls[False]
    assert [call.case for call in family] == [canary.case, own.case]


def test_the_worker_that_measures_finds_it_and_its_record_says_what_it_took(begun, tmp_path):
    """The worker of each later pass also finds the compiled kernels, whatever earlier passes have
    left."""
    plan, ahead = begun(["compiles"], timeout_s=30)
    ahead.call(cells(plan), 2, ROOM, print)
    [job] = next_jobs(plan, log_of(plan))
    began = time.monotonic()
    for look in range(2):
        with main_pass.executor_of(plan, tmp_path / "run") as executor:
            executor.worker.describe()  # start the worker, without compiled kernels
            ahead.lend(executor, "files")
            answer = executor.run(job)
            assert isinstance(answer, Measured)
            [observation] = answer.observations
            assert observation.status is Status.OK, observation.reason
            assert observation.compile_s is not None
            assert compiling.COMPILES_S <= observation.compile_s <= time.monotonic() - began + 5
            assert executor.worker.scratch.path == ahead.scratch.path  # some caches hold paths
            caches = Path(executor.worker.scratch.path, "triton")
            found = {kernel.name for kernel in caches.iterdir()}
            assert found == {"of_16", "of_63", "of_65", "of_253"}, look
            (caches / "left").touch()


def test_who_imports_no_candidate_begins_with_what_such_workers_compiled(begun, tmp_path):
    plan, ahead = begun(["compiles", "sdpa_gqa"], lengths=LENGTHS, timeout_s=30)
    sources = registry.sources(KERNELS)
    [own] = [source for source in sources if source.startswith(KERNELS.name)]
    infos = [
        info.model_copy(update={"compiled_by": "triton", "source": source})
        for info, source in zip(plan.implementations, (own, "nsabench"), strict=True)
    ]
    plan = plan.model_copy(update={"implementations": infos, "sources": sources})
    ahead = CompileAhead(plan, tmp_path / "run")
    with (
        closing(ahead),
        main_pass.executor_of(plan, tmp_path, plan.clean_sources) as executor,
    ):
        ahead.call(cells(plan), 2, ROOM, print)
        assert {name for _, name in ahead.first_s} == {"compiles", "sdpa_gqa"}
        of_all, of_clean = (Path(aside(ahead, clean=clean), "triton") for clean in (False, True))
        assert len(list(of_all.glob("of_*"))) == len(CALLED)
        assert of_clean.is_dir() and not list(of_clean.iterdir())
        # Without a sandbox for files, a candidate could have written to the shared folder.
        ahead.lend(executor, "none: this kernel has no Landlock, sockets (seccomp)")
        assert executor.worker.scratch.path != ahead.scratch.path
        ahead.lend(executor, "files (Landlock 3)")
        assert executor.worker.scratch.path == ahead.scratch.path


@pytest.mark.parametrize("name", ["ends_its_process", "never_ends"])
def test_who_ends_its_process_is_called_once_and_the_others_are_compiled(begun, name):
    plan, done = begun([name, "compiles"], lengths=LENGTHS)
    done.call(cells(plan), 2, ROOM, print)
    assert min(s for (_, one), s in done.first_s.items() if one == "compiles") > 0
    assert len([call for call in calls(done) if call[0] == name]) == 1
    assert leftovers() == []


def test_an_interrupt_ends_all_processes(begun, monkeypatch):
    def interrupted(pending, **_):
        monkeypatch.undo()
        while not any(one.running() for one in pending):
            time.sleep(0.05)
        raise KeyboardInterrupt  # while a process is about to be started

    monkeypatch.setattr("nsabench.running.compilation.wait", interrupted)
    plan, ahead = begun(["never_ends", "compiles"], lengths=LENGTHS, timeout_s=600)
    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        ahead.call(cells(plan), 1, ROOM, print)
    assert time.monotonic() - began < 60  # the time limit is 600 s
    assert leftovers() == []


def test_a_cpu_compiles_nothing_ahead(begun):
    plan, ahead = begun(["compiles"], lengths=(*LENGTHS, 256))
    notes = []
    ahead.compile(next_jobs(plan, log_of(plan)), 80 << 30, notes.append)
    assert (ahead.first_s, notes) == ({}, [])


@pytest.mark.parametrize(
    ("shards", "cores", "memory_gib", "call_gib", "most"),
    [
        (1, 16, 128, 80, 15),
        (1, 16, 128, 8, 4),
        (1, 16, 128, 0, 0),
        (1, 64, 128, 80, compilation.MOST_PROCESSES),
        (1, 64, 32, 80, 10),  # as on a desktop
        (1, 64, None, 80, compilation.MOST_PROCESSES),
        (5, 16, 128, 80, 2),
        (5, 64, 32, 80, 2),
    ],
)
def test_processes_are_as_many_as_cores_and_memory_allow(
    monkeypatch, shards, cores, memory_gib, call_gib, most
):
    monkeypatch.setenv(compilation.SHARDS_ON_HOST, str(shards))
    monkeypatch.setattr(compilation.os, "sched_getaffinity", lambda _: set(range(cores)))
    memory = None if memory_gib is None else memory_gib << 30
    monkeypatch.setattr(compilation, "memory_of", lambda _: memory)
    assert compilation.most_processes(call_gib << 30) == most


def test_a_large_case_waits_for_the_others_and_these_for_it():
    """Each call takes the room of its own case, not of the largest."""
    room, together, most = compilation.Room(10), 0, {1: 0, 4: 0, 99: 0}
    lock = threading.Lock()

    def take(size):
        nonlocal together
        with room.take(size):
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
