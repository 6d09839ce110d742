"""``selection_rows`` against the float64 reference (interpreter on the CPU, or CUDA)."""

from __future__ import annotations

import dataclasses

import nsa_kernels
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
KERNELS = [nsa_kernels.selection_rows, nsa_kernels.selection_rows_per_head]


def draw(n: int, h: int, d: int, dv: int, length: int, dtype: torch.dtype, seed: int = 0):
    gen = torch.Generator().manual_seed(seed)
    shapes = ((n, h, d), (n, length, d), (n, length, dv))
    return tuple(torch.randn(s, generator=gen).to(dtype).to(DEVICE) for s in shapes)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("n", "h", "d", "dv", "length"),
    [
        (2, 4, 16, 16, 5),
        (3, 8, 64, 64, 64),
        (2, 17, 80, 48, 130),
        (1, 1, 128, 64, 300),
        (2, 3, 256, 256, 33),
        (2, 2, 24, 200, 1),
        (1, 70, 32, 32, 40),
    ],
)
def test_matches_reference(kernel, dtype, n, h, d, dv, length) -> None:
    q, k, v = draw(n, h, d, dv, length, dtype)
    oracle.assert_close(kernel(q, k, v), oracle.rows(q, k, v), dtype)


@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 5),
    h=st.integers(1, 20),
    d=st.integers(16, 72),
    dv=st.integers(16, 72),
    length=st.integers(1, 200),
    dtype=st.sampled_from(DTYPES),
    scale=st.floats(0.01, 1.0),
)
def test_any_shape(n, h, d, dv, length, dtype, scale) -> None:
    q, k, v = draw(n, h, d, dv, length, dtype, seed=length)
    got = nsa_kernels.selection_rows(q, k, v, sm_scale=scale)
    oracle.assert_close(got, oracle.rows(q, k, v, scale), dtype)


@pytest.mark.parametrize("kernel", KERNELS)
def test_empty_selection(kernel) -> None:
    q, k, v = draw(2, 3, 16, 32, 0, torch.float16)
    out, lse = kernel(q, k, v)
    assert out.abs().max() == 0 and torch.isneginf(lse).all()


def test_no_rows() -> None:
    q, k, v = draw(0, 3, 16, 32, 8, torch.float16)
    out, lse = nsa_kernels.selection_rows(q, k, v)
    assert out.shape == (0, 3, 32) and lse.shape == (0, 3)


@pytest.mark.parametrize("kernel", KERNELS)
def test_strides_are_honoured(kernel) -> None:
    q, k, v = draw(3, 4, 32, 32, 50, torch.float16)
    q_t = q.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    k_t = k.transpose(0, 1).contiguous().transpose(0, 1)
    v_t = torch.cat([v, v], -1)[..., ::2].contiguous()[..., : v.shape[-1]]
    v_s = torch.stack([v_t, v_t], -1)[..., 0]
    assert not (q_t.is_contiguous() or k_t.is_contiguous() or v_s.is_contiguous())
    oracle.assert_close(kernel(q_t, k_t, v_s), oracle.rows(q, k, v_t), torch.float16)


@pytest.mark.parametrize("magnitude", [1e2, 1e4])
def test_large_logits(magnitude) -> None:
    q, k, v = draw(2, 4, 64, 64, 100, torch.float32)
    q = q * magnitude
    out, lse = nsa_kernels.selection_rows(q, k, v, sm_scale=0.125)
    want, want_lse = oracle.rows(q, k, v, 0.125)
    assert torch.isfinite(out).all() and torch.isfinite(lse).all()
    torch.testing.assert_close(out.double(), want, atol=2e-2, rtol=1e-2)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-2, rtol=1e-5)


def test_one_hot_attention_returns_that_value() -> None:
    q, k, v = draw(2, 4, 32, 32, 70, torch.float16)
    k.zero_()
    k[:, 69] = q[:, 0] * 8
    out, _ = nsa_kernels.selection_rows(q, k, v, sm_scale=1.0)
    torch.testing.assert_close(out[:, 0], v[:, 69], atol=1e-3, rtol=1e-3)


def test_negative_zero_inputs() -> None:
    q, k, v = draw(1, 2, 16, 16, 20, torch.float16)
    q, k = torch.full_like(q, -0.0), torch.full_like(k, -0.0)
    oracle.assert_close(nsa_kernels.selection_rows(q, k, v), oracle.rows(q, k, v), torch.float16)


def test_inputs_are_not_written_and_runs_are_identical() -> None:
    q, k, v = draw(2, 4, 64, 64, 700, torch.bfloat16)
    before = [x.clone() for x in (q, k, v)]
    first = nsa_kernels.selection_rows(q, k, v)
    second = nsa_kernels.selection_rows(q, k, v)
    assert all(torch.equal(a, b) for a, b in zip(before, (q, k, v), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, v: (q.double(), k, v), TypeError, "dtype"),
        (lambda q, k, v: (q, k.float(), v), TypeError, "dtype"),
        (lambda q, k, v: (q[..., :8], k[..., :8], v), ValueError, "16..256"),
        (lambda q, k, v: (q, k[..., :16], v), ValueError, "head dim"),
        (lambda q, k, v: (q[0], k, v), ValueError, "expected q"),
        (lambda q, k, v: (q, k[:, :3], v), ValueError, "expected q"),
        (lambda q, k, v: (q, k, v.to("meta")), ValueError, "device"),
    ],
)
def test_bad_inputs_are_refused(change, error, word) -> None:
    q, k, v = draw(2, 4, 32, 32, 10, torch.float16)
    with pytest.raises(error, match=word):
        nsa_kernels.selection_rows(*change(q, k, v))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("which", range(3))
def test_a_gradient_is_not_lost_in_silence(kernel, which) -> None:
    args = draw(2, 4, 16, 16, 10, torch.float32)
    args[which].requires_grad_()
    with pytest.raises(ValueError, match="has no backward"):
        kernel(*args)
    with torch.no_grad():
        assert not kernel(*args)[0].requires_grad


def test_a_config_of_another_shape_is_refused() -> None:
    """It would attend to the first keys only, or leave heads unwritten."""
    small, long = draw(4, 2, 16, 16, 64, torch.float32), draw(4, 2, 16, 16, 512, torch.float32)
    config = nsa_kernels.chosen_config("selection_rows", *small)
    with pytest.raises(ValueError, match="512 keys"):
        nsa_kernels.selection_rows(*long, config=config)
    many = draw(4, 100, 16, 16, 64, torch.float32)
    with pytest.raises(ValueError, match="q has 100"):
        nsa_kernels.selection_rows(*many, config=config)
    with pytest.raises(ValueError, match="in tiles of"):
        odd = dataclasses.replace(config, chunk=config.block_l + 8)
        nsa_kernels.selection_rows(*small, config=odd)
    config = nsa_kernels.chosen_config("selection_rows", *long)
    config = dataclasses.replace(config, splits=1, chunk=512)  # a GPU's is split
    for args in (small, long):
        got = nsa_kernels.selection_rows(*args, config=config)
        oracle.assert_close(got, oracle.rows(*args), torch.float32)


@pytest.mark.parametrize("length", [100, 200, 256, 512])
def test_a_config_with_more_shares_than_the_row_fills_is_refused(length) -> None:
    """An empty share would be a NaN, and a row that is no whole number of tiles another row's."""
    config = nsa_kernels.chosen_config("selection_rows", *draw(1, 2, 16, 16, 1024, torch.float32))
    assert config.splits * config.chunk >= 1024 and config.splits > 1
    args = draw(1, 2, 16, 16, length, torch.float32)
    with pytest.raises(ValueError, match=f"rows of {length} keys"):
        nsa_kernels.selection_rows(*args, config=config)


def test_no_rows_have_a_config_too() -> None:
    config = nsa_kernels.chosen_config("selection_rows", *draw(0, 2, 16, 16, 64, torch.float32))
    assert config.splits == 1
