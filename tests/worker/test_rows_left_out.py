"""Rows that nobody is held to must hold numbers."""

from __future__ import annotations

import math

import pytest
import torch

from nsabench.checker import compare as parity


@pytest.mark.parametrize("said", [math.nan, math.inf])
@pytest.mark.parametrize("written", [math.nan, math.inf])
def test_a_row_left_out_must_be_a_number(said: float, written: float) -> None:
    oracle = torch.ones(8, 4, dtype=torch.float64)
    oracle[3] = said
    output = torch.ones(8, 4)
    output[3] = 7.0
    assert parity.measure("output", output, oracle, 1e-3, leaves_out=True).mae == 0
    output[3] = written
    assert not math.isfinite(parity.measure("output", output, oracle, 1e-3, leaves_out=True).mae)
