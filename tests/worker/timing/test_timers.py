"""The spins, launches and ceilings of a timer, on a CUDA device that is only simulated.

`tests/gpu/test_timer_on_cuda.py` tests the measured times on a GPU.
"""

import importlib
import sys
from types import SimpleNamespace

import pytest
import torch

from nsabench.machine.cpu_caches import last_level_bytes
from nsabench.worker.timing import ceilings, cuda
from nsabench.worker.timing.cuda import (
    CYCLES_PER_S,
    FIRST_CYCLES,
    MOST_CYCLES,
    Counted,
    Ran,
    between_marks,
    l2_bytes,
)
from nsabench.worker.timing.timer import CpuTimer
from tests.true_caches import true_caches


class Device:
    """The host takes `host_s` for a call; a spin of `enough` cycles hides it."""

    def __init__(self):
        self.now, self.spins, self.enough, self.host_s = 0.0, [0], 0.0, 1e-6

    def call(self):
        self.now += self.host_s
        return "result"


class Event:
    device: Device

    def __init__(self, **_):
        pass

    def record(self, stream):
        pass

    def query(self):
        return self.device.spins[-1] < self.device.enough

    def synchronize(self):
        pass

    def elapsed_time(self, end):
        return FLUSH_S * 1e3  # whatever is timed


@pytest.fixture
def device(monkeypatch):
    made = Device()
    monkeypatch.setattr(Event, "device", made, raising=False)
    monkeypatch.setattr(torch._C, "_CudaEventBase", Event, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", made.spins.append)
    return made


@pytest.fixture
def timer(device, monkeypatch):
    name = "nsabench.worker.timing.cuda"
    before = sys.modules.pop(name, None)
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "L2Flush", lambda: lambda: None)
    monkeypatch.setattr(module, "now_s", lambda: device.now)
    yield module.CudaTimer()
    sys.modules.pop(name)
    if before is not None:
        sys.modules[name] = before


def test_a_spin_that_is_long_enough_is_kept(timer, device):
    device.enough, device.host_s = 350_000, 100e-6
    device.spins.clear()
    made = []

    def retry():
        made.append(len(device.spins))
        return device.call

    sample, result = timer.sample("mine", device.call, retry)
    assert (result, sample.gap_hidden, sample.host_us) == ("result", True, pytest.approx(100))
    assert device.spins == [FIRST_CYCLES, 200_000, 400_000] and made == [1, 2]
    timer.sample("mine", device.call, retry)
    assert device.spins[3:] == [400_000]
    timer.sample("another", device.call, retry)
    assert device.spins[4:] == [FIRST_CYCLES, 200_000, 400_000]
    timer.forget()
    device.enough = 0
    timer.sample("mine", device.call, retry)
    assert device.spins[-1] == FIRST_CYCLES


FLUSH_S = 20e-6


@pytest.mark.parametrize(
    ("host_s", "tries"), [(50e-6, 1), (60e-6, 2), (400e-6, 3), (2e-3, 3), (0.03, 3)]
)
def test_a_call_is_hidden_after_few_tries_and_its_spin_stays_long_enough(
    timer, device, host_s, tries
):
    device.host_s, device.enough = host_s, (host_s - FLUSH_S) * CYCLES_PER_S
    device.spins.clear()
    timer.sample("mine", device.call)
    assert len(device.spins) == tries
    device.spins.clear()
    assert all(timer.sample("mine", device.call)[0].gap_hidden for _ in range(9))
    assert len(device.spins) == 9  # no sample was tried again
    assert device.enough <= device.spins[-1] <= max(4 * device.enough, FIRST_CYCLES)


def test_a_pause_of_the_host_makes_one_sample_long_and_not_all_that_follow(timer, device):
    """After the pause, one spin is half as long, and the next ones have the usual length."""
    device.enough, device.host_s = 300_000, 10e-6
    timer.sample("mine", device.call)
    assert device.spins[-1] == 400_000
    device.enough = 60_000  # the usual host, without that pause
    device.spins.clear()
    for _ in range(4):
        timer.sample("mine", device.call)
    assert device.spins == [200_000, FIRST_CYCLES, FIRST_CYCLES, FIRST_CYCLES]


@pytest.mark.parametrize(
    ("host_s", "first", "second"),
    [
        (0.25, [100_000, 200_000], [200_000, 400_000]),
        (0.1, [100_000, 200_000, MOST_CYCLES], [MOST_CYCLES]),
    ],
)
def test_who_waits_for_the_device_is_not_hidden_and_says_so(timer, device, host_s, first, second):
    device.enough, device.host_s = float("inf"), host_s
    tried = []
    for _ in range(3):
        device.spins.clear()
        sample, _ = timer.sample("sleeps", device.call)
        assert (sample.gap_hidden, sample.host_us) == (False, 0.0)
        tried.append(list(device.spins))
    assert tried == [first, second, []]  # the third sample has no spin


def test_two_pauses_of_the_host_expose_one_sample(timer, device):
    device.enough, device.host_s = float("inf"), 0.2
    assert not timer.sample("mine", device.call)[0].gap_hidden
    device.enough, device.host_s = 0.0, 0.0
    assert all(timer.sample("mine", device.call)[0].gap_hidden for _ in range(5))


@pytest.mark.parametrize(
    ("properties", "mib"),
    [
        ({"name": "NVIDIA H200", "L2_cache_size": 50 << 20}, 50),
        ({"name": "NVIDIA GeForce RTX 4090"}, 72),  # torch 2.4 and older
        ({"name": "NVIDIA of tomorrow"}, 128),
    ],
)
def test_l2_bytes(properties, mib):
    assert l2_bytes(SimpleNamespace(**properties)) == mib << 20


MARK = "void (anonymous namespace)::spin_kernel(long)"


def test_what_makes_a_call_ready_does_not_count():
    names = ["fill", MARK, "a", "b", MARK, "forward", "copy", MARK, MARK, MARK, "c", MARK, "d"]
    ran = [Ran(name, 1.5 if name in "abc" else 100.0) for name in names]
    assert between_marks(ran) == [Counted(2, 3.0), Counted(0, 0.0), Counted(1, 1.5)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_nothing_is_counted():
    assert cuda.count_launches({"mine": lambda: lambda: None}) == {}


def test_a_cpu_copies_what_no_cache_holds():
    with true_caches():
        found = ceilings.measure("cpu", CpuTimer())
    assert found.cpu_flush_bytes == 2 * last_level_bytes()
    assert found.copy_gb_s and found.timer_floor_ms is not None and found.tflop_s["float32"] > 0
