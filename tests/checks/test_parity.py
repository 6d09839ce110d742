import math

import numpy as np
import pytest

from nsabench.checks import DeviceLimits, Effect
from nsabench.checks.parity import check_parity, noise
from nsabench.model.vocabulary import Direction, DType

NONE = DeviceLimits()


@pytest.mark.parametrize("role", ["candidate", "baseline", "control"])
def test_mae_over_the_tolerance_is_wrong_for_every_role(make_row, role):
    (finding,) = check_parity(
        [make_row("bad", role, mae=0.148), make_row("good", "baseline")], NONE
    )
    assert (finding.effect, finding.implementation) == (Effect.WRONG, "bad")
    assert "0.148" in finding.sentence
    assert "0.001" in finding.sentence


def test_nan_is_wrong(make_row):
    assert check_parity([make_row(mae=math.nan)], NONE)
    assert check_parity([make_row(rel_l2=math.nan), make_row("b", "baseline")], NONE)


def test_no_error_of_another_moves_the_limit(make_row):
    rows = [
        make_row("mine", rel_l2=2e-3),
        make_row("near", rel_l2=9e-4),
        make_row("b", "baseline", rel_l2=1.9e-3),
        make_row("exact", "baseline", rel_l2=0.0),
    ]
    assert [f.implementation for f in check_parity(rows, NONE)] == ["mine", "b"]
    assert [f.implementation for f in check_parity(rows[:1], NONE)] == ["mine"]


def test_a_row_that_is_too_far_off_is_named(make_row):
    rows = [
        make_row("mine", worst_row=1.1e-2, worst_row_at="output[4095, 7]"),
        make_row("near", worst_row=1.9e-3),
    ]
    (finding,) = check_parity(rows, NONE)
    assert (finding.effect, finding.implementation) == (Effect.WRONG, "mine")
    assert "output[4095, 7] is 0.011: rounding in float16 explains 0.00195" in finding.sentence
    assert check_parity([make_row(worst_row=math.nan)], NONE)


@pytest.mark.parametrize(("dtype", "flagged"), [("float16", True), ("bfloat16", False)])
@pytest.mark.parametrize(("error", "off"), [("worst_row", 1e-2), ("rel_l2", 4e-3)])
def test_nothing_is_held_to_less_than_its_format_resolves(make_row, error, off, dtype, flagged):
    rows = [
        make_row("mine", dtype=dtype, **{error: off}),
        make_row("b", "baseline", dtype=dtype, **{error: 1e-4}),
    ]
    assert bool(check_parity(rows, NONE)) is flagged
    assert bool(check_parity(rows[:1], NONE)) is flagged


# An honest row may be off by so many times the noise of its sums.
OF_NOISE = {"output[3, 1]": 2.0, "dq[0, 5, 1]": 16.0, "dk[0, 5, 1]": 8.0, "dv[0, 5, 1]": 4.0}


@pytest.mark.parametrize("dtype", list(DType))
@pytest.mark.parametrize("at", OF_NOISE)
def test_each_result_has_a_bound_of_its_own(make_row, dtype, at):
    direction = Direction.FORWARD if at.startswith("output") else Direction.BACKWARD
    limit = OF_NOISE[at] * noise(dtype, 128 + 1024)

    def found(times):
        fields = {"dtype": dtype, "direction": direction, "rel_l2": None, "worst_row_at": at}
        row = make_row(worst_row=times * limit, **fields)
        return check_parity([row, make_row("b", "baseline", worst_row=0.1 * limit, **fields)], NONE)

    assert found(0.99) == []
    (finding,) = found(1.01)
    assert f"error of row {at} is" in finding.sentence


@pytest.mark.parametrize("dtype", list(DType))
def test_large_logits_widen_the_bound_of_outputs(make_row, dtype):
    """A softmax turns the absolute error of its logits into a relative error."""
    limit = noise(dtype, 128 + 1024, 1e4)
    assert limit > 9 * noise(dtype, 128 + 1024) or dtype is DType.BFLOAT16
    fields = {"dtype": dtype, "distribution": "large_logits"}
    assert (
        check_parity([make_row(rel_l2=0.99 * limit, worst_row=1.98 * limit, **fields)], NONE) == []
    )
    assert check_parity([make_row(rel_l2=1.01 * limit, **fields)], NONE)
    assert check_parity([make_row(worst_row=2.01 * limit, **fields)], NONE)


def test_gradients_of_large_logits_are_held_to_their_mean_error(make_row):
    fields = {"distribution": "large_logits", "direction": Direction.BACKWARD}
    assert (
        check_parity([make_row(rel_l2=1e9, worst_row=1e9, worst_row_at="dq[0]", **fields)], NONE)
        == []
    )
    assert check_parity([make_row(mae=2e-3, **fields)], NONE)


def test_a_matrix_may_ask_for_less(make_row):
    assert check_parity([make_row(rel_l2=2.9e-3, rel_l2_ratio=3.0)], NONE) == []
    (finding,) = check_parity([make_row(rel_l2=3e-3, rel_l2_ratio=3.0)], NONE)
    assert "over 0.00293: rounding in float16 explains 0.000977" in finding.sentence


def test_float32_is_held_to_what_honest_sums_differ_by(make_row):
    """Honest baselines on an H200 have errors from 1.33e-7 to 6.14e-7."""
    sizes = {"N": 4, "H": 4, "D": 32, "L": 129, "dtype": "float32"}
    rows = [
        make_row("best", "baseline", rel_l2=1.33e-7, **sizes),
        make_row("mine", rel_l2=6.14e-7, **sizes),
        make_row("tf32", rel_l2=3e-4, **sizes),
    ]
    assert [f.implementation for f in check_parity(rows, NONE)] == ["tf32"]


def tf32(x):
    return ((x.view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)


def truncated(x):
    """Round float64 to float32 toward zero."""
    near = x.astype(np.float32)
    return np.where(np.abs(near) > np.abs(x), np.nextafter(near, np.float32(0)), near)


def on_tensor_cores(a, b):
    """Multiply in float32 by three products in TF32, and truncate the sum after every 8 terms."""
    (high_a, high_b) = (tf32(a), tf32(b))
    (low_a, low_b) = (tf32(a - high_a), tf32(b - high_b))
    total = np.zeros((len(a), b.shape[1]), np.float32)
    for k in range(0, len(b), 8):
        for left, right in ((low_a, high_b), (high_a, low_b), (high_a, high_b)):
            part = left[:, k : k + 8].astype(np.float64) @ right[k : k + 8]
            total = truncated(total + part)
    return total


def attention(q, k, v, multiply):
    weights = np.exp(multiply(q, k.T) * q.dtype.type(0.25))
    return multiply(weights, v) / weights.sum()


def test_float32_on_tensor_cores_is_honest():
    """Tensor cores truncate sums, so an honest error is larger than if sums were rounded."""
    generator = np.random.default_rng(0)
    worst = 0.0
    for _ in range(500):
        q, k, v = (generator.standard_normal((n, 16), np.float32) for n in (1, 32, 32))
        expected = attention(*(x.astype(np.float64) for x in (q, k, v)), np.matmul)
        off = attention(q, k, v, on_tensor_cores) - expected
        worst = max(worst, np.linalg.norm(off) / np.linalg.norm(expected))
    few = math.sqrt(16 + 32) * 2**-23
    assert few < worst < noise(DType.FLOAT32, 16 + 32) < 3 * few
