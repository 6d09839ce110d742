"""Which spins the timer of a CUDA device tries, on a device that is only simulated.

`tests/gpu/test_timer_on_cuda.py` tests the measured times on a GPU.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from nsabench.worker.timing.cuda import FIRST_CYCLES, MOST_CYCLES


class Device:
    """The host takes `host_s` for a call; a spin of `enough` cycles hides it."""

    def __init__(self) -> None:
        self.now, self.spins, self.enough, self.host_s = 0.0, [0], 0.0, 1e-6

    def call(self) -> str:
        self.now += self.host_s
        return "result"


class Event:
    device: Device

    def __init__(self, **_: Any) -> None:
        pass

    def record(self, stream: Any) -> None:
        pass

    def query(self) -> bool:
        return self.device.spins[-1] < self.device.enough

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: Any) -> float:
        return 0.02  # ms, which is also the time of the flush


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Device:
    made = Device()
    monkeypatch.setattr(Event, "device", made, raising=False)
    monkeypatch.setattr(torch._C, "_CudaEventBase", Event, raising=False)
    monkeypatch.setattr(torch._C, "_cuda_synchronize", lambda: None, raising=False)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: None)
    monkeypatch.setattr(torch.cuda, "_sleep", made.spins.append)
    return made


@pytest.fixture
def timer(device: Device, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    name = "nsabench.worker.timing.cuda"
    before: ModuleType | None = sys.modules.pop(name, None)
    module = importlib.import_module(name)
    monkeypatch.setattr(module, "L2Flush", lambda: lambda: None)
    monkeypatch.setattr(module, "now_s", lambda: device.now)
    yield module.CudaTimer()
    sys.modules.pop(name)
    if before is not None:
        sys.modules[name] = before


def test_a_spin_that_is_long_enough_is_kept(timer: Any, device: Device) -> None:
    device.enough, device.host_s = 350_000, 100e-6
    device.spins.clear()
    made: list[int] = []

    def retry() -> Any:
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


def test_a_pause_of_the_host_makes_one_sample_long_and_not_all_that_follow(
    timer: Any, device: Device
) -> None:
    """On an H200, a single pause of the host raised every later spin of a case from 50 to 300
    us."""
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
def test_who_waits_for_the_device_is_not_hidden_and_says_so(
    timer: Any, device: Device, host_s: float, first: list[int], second: list[int]
) -> None:
    device.enough, device.host_s = float("inf"), host_s
    tried = []
    for _ in range(3):
        device.spins.clear()
        sample, _ = timer.sample("sleeps", device.call)
        assert (sample.gap_hidden, sample.host_us) == (False, 0.0)
        tried.append(list(device.spins))
    assert tried == [first, second, []]  # and once more without any


def test_two_pauses_of_the_host_expose_one_sample(timer: Any, device: Device) -> None:
    device.enough, device.host_s = float("inf"), 0.2
    assert not timer.sample("mine", device.call)[0].gap_hidden
    device.enough, device.host_s = 0.0, 0.0
    assert all(timer.sample("mine", device.call)[0].gap_hidden for _ in range(5))
