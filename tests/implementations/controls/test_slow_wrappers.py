"""Controls that sleep are slow by far, and yet no run takes minutes for them."""

from __future__ import annotations

import pytest
import torch

from nsabench.assessment.checks.baseline import SLOW
from nsabench.implementations.controls import baseline


@pytest.mark.parametrize("factor", [baseline.SLEEP_FACTOR, baseline.BACKWARD_FACTOR])
@pytest.mark.parametrize(
    ("taken_s", "most_s"), [(1e-5, 2e-2), (1e-3, 2e-2), (5e-3, 0.12), (0.19, 0.9), (3.0, 13.0)]
)
def test_a_long_call_is_not_slept_over_many_times(
    monkeypatch: pytest.MonkeyPatch, factor: float, taken_s: float, most_s: float
) -> None:
    slept: list[float] = []
    monkeypatch.setattr(baseline.time, "sleep", slept.append)
    monkeypatch.setattr(baseline, "_perf_counter", lambda: taken_s)
    baseline._oversleep(0.0, torch.empty(0), factor, baseline.LEAST_BACKWARD_S)
    assert slept[0] <= most_s
    assert taken_s + slept[0] > (SLOW + 1.5) * taken_s
