"""Rows that the oracle has not computed are not compared, but must hold numbers."""

from __future__ import annotations

import math

import pytest
import torch

from nsabench.checker import compare


@pytest.mark.parametrize("written", [math.nan, math.inf])
def test_a_row_that_is_not_compared_must_be_a_number(written: float) -> None:
    oracle = torch.ones(8, 4, dtype=torch.float64)
    oracle[3] = math.nan
    output = torch.ones(8, 4)
    output[3] = 7.0
    errors = compare.measure("output", output, oracle, 1e-3, sampled=True)
    assert (errors.mae, errors.rows_compared) == (0, 7)
    output[3] = written
    assert math.isnan(compare.measure("output", output, oracle, 1e-3, sampled=True).mae)


def test_the_worst_row_keeps_its_number() -> None:
    oracle = torch.ones(8, 4, dtype=torch.float64)
    oracle[:3] = math.nan
    output = torch.ones(8, 4)
    output[5] = 2.0
    errors = compare.measure("output", output, oracle, 1e-3, sampled=True)
    assert errors.worst_row_at == "output[5]"
