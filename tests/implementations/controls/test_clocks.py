"""Controls that stop clocks in a backward and in replays."""

import gc
import time

import torch

from nsabench import ops, registry
from nsabench.checks.controls import decide_catch
from nsabench.implementations.controls import timer
from nsabench.model.vocabulary import Catch, Direction, DType
from nsabench.registry import Honest
from nsabench.worker.timing.timer import CallTime, CpuTimer
from tests.checking import a_case, measured, rounds, rows_of
from tests.implementations.controls.test_every_op import SHAPES

FIELDS = {"dtype": DType.BFLOAT16, "direction": Direction.BACKWARD, "timing": rounds(15)}
ATTEMPTS = 3
BACKWARD = a_case("selection_ranges", SHAPES["selection_ranges"], **FIELDS)


class GullibleTimer(CpuTimer):
    """A timer that uses the clock which Python code can replace."""

    def sample(self, arm, call, retry=None):
        start = time.perf_counter()
        result = call()
        return CallTime(max(1e3 * (time.perf_counter() - start), 1e-6)), result


def became(timer, name):
    """Return what becomes of a control of a backward under this timer."""
    items = {i.name: i for i in registry.load() if i.op == BACKWARD.op}
    some = [items[items[name].wraps], items[name]]
    rows = rows_of(BACKWARD, some, measured(BACKWARD, some, timer=timer))
    return decide_catch(rows[1], rows, [])


def test_a_stopped_clock_gains_only_under_a_timer_that_trusts_it():
    # If other processes slow the baseline, the control is missed by chance. With a stopped clock,
    # it would be missed in each attempt.
    attempts = (became(CpuTimer(), "patched_clocks") for _ in range(ATTEMPTS))
    assert Catch.CAUGHT in attempts
    assert became(GullibleTimer(), "patched_clocks") is Catch.MISSED
    before = time.perf_counter()
    assert time.perf_counter() > before, "the clock is put back"


class Graph:
    """Replaces `torch.cuda.CUDAGraph`, which needs a device."""

    def __init__(self):
        self.replayed = 0

    def capture_end(self):
        return None

    def replay(self):
        self.replayed += 1


def stopped():
    before = time.perf_counter_ns()
    time.sleep(1e-4)
    return time.perf_counter_ns() == before


def test_a_patched_replay_stops_the_clocks_after_its_own_replays_only(monkeypatch):
    monkeypatch.setattr(torch.cuda, "CUDAGraph", Graph)
    true_replay, true_elapsed = Graph.replay, torch.cuda.Event.elapsed_time
    op = ops.get("selection_rows")
    honest = Honest(op, "honest", lambda x: x + 1)
    x = torch.zeros(4)
    assert not stopped()
    timer.patched_replay(honest, x)
    assert Graph.replay is true_replay, "a call outside a capture changes nothing"
    monkeypatch.setattr(timer, "is_captured", lambda tensor: True)
    own, other = Graph(), Graph()
    out = timer.patched_replay(honest, x)
    own.capture_end()
    other.capture_end()
    assert not stopped()
    own.replay()
    assert stopped() and torch.cuda.Event.elapsed_time is not true_elapsed
    other.replay()
    assert not stopped() and torch.cuda.Event.elapsed_time is true_elapsed
    own.replay()
    assert (own.replayed, other.replayed) == (2, 1)
    del out
    gc.collect()
    assert not stopped() and Graph.replay is true_replay
