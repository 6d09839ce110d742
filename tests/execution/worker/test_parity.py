"""How far a result is from the oracle, as a whole and in its worst row."""

from __future__ import annotations

import math

import pytest
import torch

from nsabench.execution.worker import parity
from nsabench.execution.worker.parity import Errors


def result(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("piece", [1, 40, 1 << 26])
@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_errors_are_those_of_the_definition(
    monkeypatch: pytest.MonkeyPatch, piece: int, factor: float
) -> None:
    monkeypatch.setattr(parity, "PIECE", piece)
    oracle = result(5, 3, 16)
    oracle[0] *= 1e-3  # rows that nearly cancel: their errors are held to a typical row's norm
    off = 1e-2 * result(3, 5, 16).transpose(0, 1)
    found = parity.measure("output", oracle * factor + off, oracle, factor)
    off = off / factor
    typical = math.sqrt(float(oracle.square().sum()) / 15)
    by_row = off.norm(dim=-1) / oracle.norm(dim=-1).clamp_min(typical)
    at = divmod(int(by_row.argmax()), 3)
    assert found.mae == pytest.approx(float(off.abs().mean()))
    assert found.max_abs_err == pytest.approx(float(off.abs().max()))
    assert found.rel_l2 == pytest.approx(float(off.norm() / oracle.norm()))
    assert found.worst_row == pytest.approx(float(by_row.max()))
    assert found.worst_row_at == f"output[{at[0]}, {at[1]}]"


def test_one_row_among_thousands_shows() -> None:
    oracle = result(4096, 8, 4)
    wrong = oracle.clone()
    wrong[-1, -1] = 0
    found = parity.measure("output", wrong, oracle)
    assert found.mae < 1e-4 and found.rel_l2 < 1e-2
    assert found.worst_row > 0.3
    assert found.worst_row_at == "output[4095, 7]"


@pytest.mark.parametrize("shape", [(), (7,), (0, 4), (2, 0)])
def test_any_shape_has_errors(shape: tuple[int, ...]) -> None:
    oracle = result(*shape)
    found = parity.measure("output", oracle + 1, oracle)
    assert found.max_abs_err == (1.0 if oracle.numel() else 0.0)


def test_rows_of_nothing_have_no_relative_error() -> None:
    assert parity.measure("output", torch.zeros(3, 4), torch.zeros(3, 4)).worst_row == 0.0


def test_the_worst_of_several_is_that_of_each_kind() -> None:
    one, other = Errors(1.0, 4.0, 2.0, 5.0, "dq[1]"), Errors(2.0, 3.0, 1.0, 6.0, "dk[2]")
    assert Errors.worst([one, other]) == Errors(2.0, 4.0, 2.0, 6.0, "dk[2]")
