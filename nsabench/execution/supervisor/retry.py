"""Measuring once more what was spoiled by something other than who is measured."""

from __future__ import annotations

import time
from collections.abc import Callable

from nsabench.execution.protocol import Measured
from nsabench.execution.supervisor.executor import GroupLost
from nsabench.machine.environment.nvml import POWER_CAP, THROTTLING

COOL_DOWN_S = 5.0
BEFORE_ANY = ("inputs",)
PASSING = THROTTLING - {POWER_CAP}  # what a pause may help against: the cap is the work's own


def cooled(measure: Callable[[], Measured]) -> Measured:
    """Once more, after a pause, if the device was throttled by what may pass; if it is again,
    conditions say so."""
    measured = measure()
    if PASSING & set(measured.conditions.clock_event_reasons):
        time.sleep(COOL_DOWN_S)
        spoiled, measured = measured, measure()
        measured.measuring_s += spoiled.measuring_s
        measured.queue_s += spoiled.queue_s
        _note(measured, "measured twice: the device was throttled the first time")
    return measured


def unless_lost_early(measure: Callable[[], Measured]) -> Measured:
    """Once more, in a worker that is new, if one was lost before it had called anybody.

    It was warm: what an earlier case left in it (a thread, say) may have ended it. Raises
    `GroupLost`; of `BEFORE_ANY` only when that happened in a worker that was new.
    """
    try:
        return measure()
    except GroupLost as lost:
        if lost.phase not in BEFORE_ANY:
            raise
        measured = measure()
        _note(measured, f"measured again, since before any call: {lost.reason}")
        return measured


def _note(measured: Measured, note: str) -> None:
    for outcome in measured.outcomes:
        outcome.notes.append(note)
