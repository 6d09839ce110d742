"""Read the device's sensors while a worker measures, where the worker cannot forge them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nsabench.machine.environment import nvml
from nsabench.model.measurement import Conditions
from nsabench.model.plan import Device
from nsabench.worker.conditions import ConditionMonitor
from nsabench.worker.protocol import Step

# The clocks differ while kernels are compiled.
TIMED = ("warm-up", "timing")


@dataclass
class Watch:
    """seen: set at the end; None if the sensors cannot be read."""

    monitor: ConditionMonitor
    seen: Conditions | None = None

    def at_step(self, step: Step) -> None:
        if step.phase in TIMED:
            self.monitor.begin()


@contextmanager
def watching(device: Device, own: Callable[[], Collection[int]]) -> Iterator[Watch]:
    """own: processes that do not compete with the worker."""
    sensors = nvml.Device.visible() if device == "cuda" else None
    with ConditionMonitor(sensors) as monitor:
        watch = Watch(monitor)
        yield watch
    if sensors is not None:
        watch.seen = monitor.summary(own())
