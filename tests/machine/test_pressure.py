"""What the kernel says of processes that waited for a core, and where it says nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from nsabench.machine import pressure


def test_the_wait_of_each_thread_is_read(tmp_path: Path) -> None:
    for thread, text in ((7, "100 3000000000 9\n"), (8, "100 5 9\n"), (9, "none")):
        (tmp_path / f"proc/7/task/{thread}").mkdir(parents=True)
        (tmp_path / f"proc/7/task/{thread}/schedstat").write_text(text)
    assert pressure.waits_of([7, 11], tmp_path) == {7: 3.0, 8: pytest.approx(5e-9)}


@pytest.mark.parametrize(
    ("before", "now", "busy"),
    [
        ({7: 5.0}, {7: 5.0}, False),
        ({7: 5.0}, {7: 9.0}, True),
        ({7: 5.0}, {7: 5.0, 8: 1.0}, True),  # a thread, or a process, that is new
    ],
)
def test_busy_is_where_one_of_them_waited(
    monkeypatch: pytest.MonkeyPatch,
    before: dict[int, float],
    now: dict[int, float],
    busy: bool,
) -> None:
    readings = iter((before, now))
    monkeypatch.setattr(pressure, "waits_of", lambda pids: next(readings))
    assert pressure.watch(lambda: [7])() is busy


@pytest.mark.parametrize(
    ("idle", "others", "busy"),
    [(0.0, 0.0, False), (0.0, 9.0, True), (9.0, 9.0, False)],
)
def test_without_schedstat_others_that_left_no_core_idle_are_noticed(
    monkeypatch: pytest.MonkeyPatch, idle: float, others: float, busy: bool
) -> None:
    readings = iter(((5.0, 5.0), (5.0 + idle, 5.0 + others)))
    monkeypatch.setattr(pressure, "waits_of", lambda pids: {})
    monkeypatch.setattr(pressure, "idle_and_others", lambda pids: next(readings))
    assert pressure.watch(lambda: [7])() is busy


def test_what_these_processes_use_is_not_of_others() -> None:
    idle, others = pressure.idle_and_others([])
    assert idle > 0
    used = psutil.Process().cpu_times()
    assert others - pressure.idle_and_others([os.getpid()])[1] >= 0.9 * used.user


def test_who_shares_a_core_waits_and_who_sleeps_does_not() -> None:
    """Two that work on one core; what a neighbour does with it is no matter to one that sleeps."""
    if not Path("/proc/self/schedstat").exists():
        pytest.skip("this kernel does not count it")
    core = min(os.sched_getaffinity(0))
    bound = f"import os, time; os.sched_setaffinity(0, {{{core}}})\n"
    begun = bound + "print('begun', flush=True)\n"
    work, sleep = begun + "while True: pass", begun + "time.sleep(600)"
    started = [
        subprocess.Popen([sys.executable, "-S", "-c", one], stdout=subprocess.PIPE)
        for one in (sleep, work, work)  # who works last keeps nobody from beginning
    ]
    try:
        for one in started:
            assert one.stdout is not None
            assert one.stdout.readline()
        started = [*started[1:], started[0]]
        shared, idle = (pressure.watch(lambda pid=one.pid: [pid]) for one in started[1:])  # type: ignore[misc]
        time.sleep(1.0)
        assert shared() and not idle()
    finally:
        for one in started:
            one.kill()
            one.communicate()
