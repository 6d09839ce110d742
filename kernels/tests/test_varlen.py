"""``selection_varlen`` against the float64 reference (interpreter on the CPU, or CUDA)."""

from __future__ import annotations

import dataclasses

import nsa_kernels
import nsa_kernels.selection.varlen.api as varlen_module
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]


def draw(lengths: list[int], h: int, d: int, dv: int, dtype: torch.dtype, tail: int = 0):
    gen = torch.Generator().manual_seed(sum(lengths))
    cu = torch.tensor([0, *lengths]).cumsum(0).to(torch.int32)
    total = sum(lengths) + tail
    shapes = ((len(lengths), h, d), (total, d), (total, dv))
    q, k, v = (torch.randn(s, generator=gen).to(dtype).to(DEVICE) for s in shapes)
    return q, k, v, cu.to(DEVICE)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    "lengths",
    [[5], [0], [0, 0, 0], [1, 0, 64, 65, 0], [700, 3, 0, 300], [0, 2000], [1] * 40],
)
def test_matches_reference(lengths, dtype) -> None:
    args = draw(lengths, 4, 32, 48, dtype)
    oracle.assert_close(nsa_kernels.selection_varlen(*args), oracle.varlen(*args), dtype)


@settings(max_examples=30, deadline=None)
@given(
    lengths=st.lists(st.one_of(st.just(0), st.integers(0, 300)), min_size=1, max_size=8),
    h=st.integers(1, 18),
    d=st.integers(16, 40),
    dv=st.integers(16, 40),
    dtype=st.sampled_from(DTYPES),
    hint=st.booleans(),
    tail=st.sampled_from([0, 0, 100]),
)
def test_any_lengths(lengths, h, d, dv, dtype, hint, tail) -> None:
    args = draw(lengths, h, d, dv, dtype, tail)
    got = nsa_kernels.selection_varlen(*args, max_seqlen=max(lengths) if hint else None)
    oracle.assert_close(got, oracle.varlen(*args), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("hint", [70, 5, 10**9])
def test_rows_of_like_length_are_not_shared_out(hint, dtype) -> None:
    """A program a row, whether the hint is right or not; one that says nothing is no hint."""
    args = draw([70, 0, 33, 64, 1, 65, 40], 18, 32, 48, dtype)
    config = nsa_kernels.chosen_config("selection_varlen", *args[:3], longest=hint)
    if DEVICE == "cpu":  # seven rows fill no GPU
        assert config.splits == (hint < 10**9)
    config = dataclasses.replace(config, splits=1)
    want = oracle.varlen(*args)
    for given_ in ({"max_seqlen": hint}, {"config": config}):
        oracle.assert_close(nsa_kernels.selection_varlen(*args, **given_), want, dtype)


def test_many_rows_use_the_two_step_search(monkeypatch) -> None:
    monkeypatch.setattr(varlen_module, "ROWS_A_BLOCK", 16)
    lengths = [(i * 7) % 5 for i in range(130)]
    args = draw(lengths, 1, 16, 16, torch.float32)
    oracle.assert_close(nsa_kernels.selection_varlen(*args), oracle.varlen(*args), torch.float32)


@pytest.mark.parametrize("skipped", [1, 300])
def test_first_row_may_begin_behind_the_first_key(skipped) -> None:
    q, k, v, cu = draw([skipped, 40, 0, 200], 2, 16, 16, torch.float32)
    got = nsa_kernels.selection_varlen(q[1:], k, v, cu[1:])
    oracle.assert_close(got, oracle.varlen(q[1:], k, v, cu[1:]), torch.float32)


def test_strides_are_honoured() -> None:
    q, k, v, cu = draw([50, 0, 33], 4, 32, 32, torch.float16)
    k_t, v_t = (x.T.contiguous().T for x in (k, v))
    cu_s = torch.stack([cu, cu], -1)[:, 0]
    got = nsa_kernels.selection_varlen(q.mT.contiguous().mT, k_t, v_t, cu_s)
    oracle.assert_close(got, oracle.varlen(q, k, v, cu), torch.float16)


def test_equal_rows_agree_with_selection_rows() -> None:
    q, k, v, cu = draw([64] * 5, 8, 64, 64, torch.bfloat16)
    rows = nsa_kernels.selection_rows(q, k.view(5, 64, 64), v.view(5, 64, 64))
    packed = nsa_kernels.selection_varlen(q, k, v, cu)
    torch.testing.assert_close(packed[0], rows[0], atol=1e-2, rtol=1e-2)
    torch.testing.assert_close(packed[1], rows[1], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, v, cu: (q, k, v, cu.long()), TypeError, "int32"),
        (lambda q, k, v, cu: (q, k, v, cu[:-1]), ValueError, "cu_seqlens"),
        (lambda q, k, v, cu: (q, k[None], v, cu), ValueError, "expected q"),
        (lambda q, k, v, cu: (q, k[:-1], v, cu), ValueError, "expected q"),
    ],
)
def test_bad_inputs_are_refused(change, error, word) -> None:
    with pytest.raises(error, match=word):
        nsa_kernels.selection_varlen(*change(*draw([5, 6], 2, 16, 16, torch.float16)))


@pytest.mark.parametrize("splits", [0, 1])
@pytest.mark.parametrize("edges", [[0, 150, 10, 200], [200, 150, 60, 0], [-7, 900, 3, 2**31 - 1]])
def test_malformed_cu_seqlens_touch_nothing_out_of_bounds(edges, splits) -> None:
    """Memory that a decrease leaves unwritten is filled with the largest integers here."""
    h, d, total = 2, 16, 200
    gen = torch.Generator().manual_seed(0)
    q = torch.randn(3, h, d, generator=gen).to(DEVICE)
    k, v = (torch.randn(total, d, generator=gen).to(DEVICE) for _ in "kv")
    cu = torch.tensor(edges, dtype=torch.int32, device=DEVICE)
    config = nsa_kernels.Config(16, 16, splits, 16, 1, 4, 1)
    torch.use_deterministic_algorithms(True)
    try:
        out, lse = nsa_kernels.selection_varlen(q, k, v, cu, config=config)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.shape == (3, h, d) and lse.shape == (3, h)
    # The process lives, and the next call is as right as ever.
    cu = torch.tensor([0, 150, 150, 200], dtype=torch.int32, device=DEVICE)
    got = nsa_kernels.selection_varlen(q, k, v, cu, config=config)
    oracle.assert_close(got, oracle.varlen(q, k, v, cu), torch.float32)


@pytest.mark.parametrize("which", range(3))
def test_a_gradient_is_not_lost_in_silence(which) -> None:
    args = draw([5, 9], 4, 16, 16, torch.float32)
    args[which].requires_grad_()
    with pytest.raises(ValueError, match="has no backward"):
        nsa_kernels.selection_varlen(*args)
    with torch.no_grad():
        assert not nsa_kernels.selection_varlen(*args)[0].requires_grad


def test_a_config_of_another_shape_is_refused() -> None:
    few, many = draw([5, 9], 4, 16, 16, torch.float32), draw([5, 9], 100, 16, 16, torch.float32)
    config = nsa_kernels.chosen_config("selection_varlen", *few[:3])
    with pytest.raises(ValueError, match="q has 100"):
        nsa_kernels.selection_varlen(*many, config=config)
    with pytest.raises(ValueError, match="no keys a work item"):
        nsa_kernels.selection_varlen(*few, config=dataclasses.replace(config, chunk=0))
    # Any chunk serves any lengths.
    long = draw([300, 9, 700], 4, 16, 16, torch.float32)
    got = nsa_kernels.selection_varlen(*long, config=config)
    oracle.assert_close(got, oracle.varlen(*long), torch.float32)
