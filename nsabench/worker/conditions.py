"""Read the device's sensors in a thread while a case is measured.

The supervisor does it as well, where the worker cannot forge the readings.
"""

from __future__ import annotations

import os
import threading
from bisect import bisect_right
from collections.abc import Collection

from nsabench.channel import Step
from nsabench.machine.clock import now_s
from nsabench.machine.environment import nvml
from nsabench.model.measurement import Conditions, Samples

INTERVAL_S = 0.02
TIMED, PROBES = ("warm-up", "timing"), "probes"


class ConditionMonitor:
    def __init__(self, device: nvml.Device | None) -> None:
        self._device = device
        self._at: list[float] = []
        self._readings: list[nvml.Reading] = []
        self._begun = 0  # the first reading that counts
        self._ended: int | None = None  # the first one after them
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> ConditionMonitor:
        if self._device is not None:
            self._thread = threading.Thread(target=self._run, daemon=True, name="conditions")
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._device is not None
        while True:
            self._at.append(now_s())
            self._readings.append(self._device.read())
            if self._stop.wait(INTERVAL_S):
                return

    def annotate(self, samples: Samples, start_s: float) -> None:
        for end_s in samples.at_s:  # the clock that was read last before it
            i = bisect_right(self._at, start_s + end_s) - 1
            clock = self._readings[max(i, 0)].sm_clock_mhz if self._readings else None
            samples.sm_clock_mhz.append(clock or 0)

    def at_step(self, step: Step) -> None:
        # Clocks differ while kernels compile: before the first timed step, and in probes.
        if step.phase in TIMED and not self._begun:
            self._begun = len(self._readings)
        if step.phase != PROBES:
            self._ended = None
        elif self._ended is None:
            self._ended = len(self._readings)

    def summary(self, own: Collection[int] = ()) -> Conditions:
        """own: processes that do not compete with the worker."""
        readings = self._readings[self._begun : self._ended] or self._readings[-1:]
        if not readings or self._device is None:
            return Conditions()
        clocks = [r.sm_clock_mhz for r in readings if r.sm_clock_mhz]
        return Conditions(
            sm_clock_mhz_min=min(clocks, default=None),
            sm_clock_mhz_max=max(clocks, default=None),
            mem_clock_mhz=readings[-1].mem_clock_mhz,
            temperature_c_max=max(
                (r.temperature_c for r in readings if r.temperature_c), default=None
            ),
            power_w_max=max((r.power_w for r in readings if r.power_w), default=None),
            clock_event_reasons=sorted({x for r in readings for x in r.clock_event_reasons}),
            competing_processes=len(self._device.process_ids() - {os.getpid(), *own}),
        )
