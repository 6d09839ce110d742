"""The errors of a result against the oracle, as a whole and in its worst row."""

import math

import pytest
import torch

from nsabench.checker import compare
from nsabench.checker.compare import Errors

RESOLVED = 2.0**-10


def result(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


@pytest.mark.parametrize("piece", [1, 40, 1 << 26])
@pytest.mark.parametrize("factor", [1.0, -2.0])
def test_errors_are_those_of_the_definition(monkeypatch, piece, factor):
    monkeypatch.setattr(compare, "PIECE", piece)
    oracle = result(5, 3, 16)
    oracle[0] *= 1e-3  # small rows, whose errors are relative to a typical row's norm
    off = 1e-2 * result(3, 5, 16).transpose(0, 1)
    found = compare.measure("output", oracle * factor + off, oracle, RESOLVED, factor)
    off = off / factor
    typical = math.sqrt(float(oracle.square().sum()) / 15)
    by_row = off.norm(dim=-1) / oracle.norm(dim=-1).clamp_min(typical)
    at = divmod(int(by_row.argmax()), 3)
    assert found.mae == pytest.approx(float(off.abs().mean()))
    assert found.max_abs_err == pytest.approx(float(off.abs().max()))
    assert found.rel_l2 == pytest.approx(float(off.norm() / oracle.norm()))
    assert found.worst_row == pytest.approx(float(by_row.max()))
    assert found.worst_row_at == f"output[{at[0]}, {at[1]}]"


def test_one_row_among_thousands_shows():
    oracle = result(4096, 8, 4)
    wrong = oracle.clone()
    wrong[-1, -1] = 0
    found = compare.measure("output", wrong, oracle, RESOLVED)
    assert found.mae < 1e-4 and found.rel_l2 < 1e-2
    assert found.worst_row > 0.3
    assert found.worst_row_at == "output[4095, 7]"


@pytest.mark.parametrize("shape", [(), (7,), (0, 4), (2, 0)])
def test_any_shape_has_errors(shape):
    oracle = result(*shape)
    found = compare.measure("output", oracle + 1, oracle, RESOLVED)
    assert found.max_abs_err == (1.0 if oracle.numel() else 0.0)


def test_rows_of_nothing_have_no_relative_error():
    zeros = torch.zeros(3, 4)
    assert compare.measure("output", zeros, zeros, RESOLVED).worst_row == 0.0


def test_the_worst_of_several_is_that_of_each_kind():
    one, other = Errors(1.0, 4.0, 2.0, 5.0, "dk[1]"), Errors(2.0, 3.0, 1.0, 6.0, "dk[2]")
    assert Errors.worst([one, other]) == Errors(2.0, 4.0, 2.0, 6.0, "dk[2]")


@pytest.mark.parametrize("of_dv", [1.0, 2.0])
def test_the_worst_row_is_the_one_that_is_furthest_beyond_its_own_bound(of_dv):
    """Terms of dv do not cancel, so its bound is a quarter of the bound of dq."""
    dq, dv = Errors(1.0, 1.0, 1.0, 6.0, "dq[1]"), Errors(1.0, 1.0, 1.0, of_dv, "dv[2]")
    assert Errors.worst([dq, dv]) == (dv if 4 * of_dv > 6.0 else dq)


def one_small(of_typical, width=16):
    """Return 64 rows. All have norm 1, except that the last has `of_typical` times a typical row's
    norm."""
    rows = result(64, width)
    rows /= rows.norm(dim=-1, keepdim=True)
    others = rows[:-1].square().sum()
    rows[-1] *= math.sqrt(float(of_typical**2 * others / (64 - of_typical**2)))
    return rows


@pytest.mark.parametrize(
    ("name", "of_typical", "held_to"),
    [
        *[("output", 0.1, 1.0), ("dq", 0.1, 1.0), ("dk", 0.1, 1.0), ("output", 1.5, 1.5)],
        *[("dv", 0.1, 0.1), ("dv", 0.02, 0.02), ("dv", 0.01, 1 / 64), ("dv", 1.5, 1.5)],
    ],
)
def test_a_small_row_is_held_to_a_typical_one_and_one_of_dv_to_itself(name, of_typical, held_to):
    oracle = one_small(of_typical)
    off = oracle.clone()
    off[-1] *= 1.5  # an error of half its norm
    found = compare.measure(name, off, oracle, RESOLVED)
    assert found.worst_row == pytest.approx(0.5 * of_typical / held_to)
    assert found.worst_row_at == f"{name}[63]"


@pytest.mark.parametrize("factor", [1.0, -0.5])
@pytest.mark.parametrize("left", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("times", [0.9, 1.1])
def test_a_lost_row_is_wrong_by_its_own_norm(times, left, factor):
    """Under a causal mask, the gradient of a late key is smaller than a typical row. If the result
    is nearly zero, the row is lost, unless the format cannot resolve it."""
    oracle = one_small(times * RESOLVED)
    off = oracle * factor
    off[-1] *= left
    found = compare.measure("dk", off, oracle, RESOLVED, factor)
    lost = times > 1 and left < 1 / 8
    assert found.worst_row == pytest.approx((1 - left) * (1.0 if lost else times * RESOLVED))


@pytest.mark.parametrize("times", [1.1, 8.0, 15.0, 17.0])
def test_of_few_elements_rounding_may_be_the_opposite(times):
    """A row of three elements that is nearly zero is lost only if it should be larger than the
    rounding of a gradient may be."""
    oracle = one_small(times * RESOLVED, width=3)
    off = oracle.clone()
    off[-1] = 0
    found = compare.measure("dgates", off, oracle, RESOLVED)
    lost = times > compare.checks.row_ratio("dgates")
    assert found.worst_row == pytest.approx(1.0 if lost else times * RESOLVED)


def test_what_underflows_is_not_lost():
    oracle = torch.full((4, 8), 4 * 2.0**-24, dtype=torch.float64)
    oracle[0] *= 100
    found = compare.measure("dq", oracle.half() * torch.tensor([[1], [0], [1], [1]]), oracle, 1e-3)
    assert found.worst_row < 0.1


@pytest.mark.parametrize("written", [math.nan, math.inf])
def test_a_row_that_is_not_compared_must_be_a_number(written):
    oracle = torch.ones(8, 4, dtype=torch.float64)
    oracle[3] = math.nan
    output = torch.ones(8, 4)
    output[3] = 7.0
    errors = compare.measure("output", output, oracle, 1e-3, sampled=True)
    assert (errors.mae, errors.rows_compared) == (0, 7)
    output[3] = written
    assert math.isnan(compare.measure("output", output, oracle, 1e-3, sampled=True).mae)


def test_the_worst_row_keeps_its_number():
    oracle = torch.ones(8, 4, dtype=torch.float64)
    oracle[:3] = math.nan
    output = torch.ones(8, 4)
    output[5] = 2.0
    errors = compare.measure("output", output, oracle, 1e-3, sampled=True)
    assert errors.worst_row_at == "output[5]"
