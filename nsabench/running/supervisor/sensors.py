"""What the device's own sensors say while a worker measures, read by the supervisor: what a worker
says of them is written in its own process."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from nsabench.machine.environment import nvml
from nsabench.model.measurement import Conditions
from nsabench.model.plan import Device
from nsabench.worker.conditions import ConditionMonitor
from nsabench.worker.protocol import Step

N = TypeVar("N", int, float)

# From here on it is timed. What a worker does before, such as to compile, has other clocks; one
# that says nothing of it is read all the while.
TIMED = ("warm-up", "timing")


@dataclass
class Watch:
    """seen: there once the watching is over."""

    monitor: ConditionMonitor
    seen: Conditions | None = None

    def at_step(self, step: Step) -> None:
        if step.phase in TIMED:
            self.monitor.begin()


@contextmanager
def watching(device: Device, own: Callable[[], Collection[int]]) -> Iterator[Watch]:
    """Read the sensors meanwhile. own: processes that do not compete with who is timed."""
    sensors = nvml.Device.visible() if device == "cuda" else None
    with ConditionMonitor(sensors) as monitor:
        watch = Watch(monitor)
        yield watch
    if sensors is not None:
        watch.seen = monitor.summary(own())


def joined(said: Conditions, seen: Conditions | None) -> Conditions:
    """What both know of a case, the worse of each. Which other processes there are, who owns the
    workers knows better than one of them."""
    if seen is None:
        return said
    return Conditions(
        sm_clock_mhz_min=_of(min, said.sm_clock_mhz_min, seen.sm_clock_mhz_min),
        sm_clock_mhz_max=_of(max, said.sm_clock_mhz_max, seen.sm_clock_mhz_max),
        mem_clock_mhz=_of(min, said.mem_clock_mhz, seen.mem_clock_mhz),
        temperature_c_max=_of(max, said.temperature_c_max, seen.temperature_c_max),
        power_w_max=_of(max, said.power_w_max, seen.power_w_max),
        clock_event_reasons=sorted({*said.clock_event_reasons, *seen.clock_event_reasons}),
        competing_processes=seen.competing_processes,
    )


def _of(choose: Callable[[N, N], N], one: N | None, other: N | None) -> N | None:
    if one is None or other is None:
        return other if one is None else one
    return choose(one, other)
