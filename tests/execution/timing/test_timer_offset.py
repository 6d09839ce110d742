"""What is measured of the device and of the timer, on a device that is made up."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from nsabench.execution.timing import ceilings
from nsabench.execution.timing.timer import Sample

ADDED_MS = 4.3e-3


class Rising:
    """A timer of a device whose clock rises by a tenth while a hundred spins are timed."""

    def __init__(self) -> None:
        self.spins = 0

    def sample(self, arm: str, call: partial[Any]) -> tuple[Sample, None]:
        cycles_a_ms = 1.6e6 * (1 + min(self.spins, 100) / 1000)
        self.spins += 1
        return Sample(ADDED_MS + call.args[0] / cycles_a_ms), None


def test_what_the_timer_adds_is_found_while_the_clock_rises() -> None:
    found = ceilings._offset(Rising())  # type: ignore[arg-type]
    assert found == pytest.approx(ADDED_MS, abs=2e-5)
