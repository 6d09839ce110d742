"""``selection_ranges`` against the float64 reference (interpreter on the CPU, or CUDA)."""

from __future__ import annotations

import dataclasses

import nsa_kernels
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nsa_kernels.selection.ranges.spans import disjoint_spans

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
S_KV = 150


def draw(b=1, s=1, g=1, h=2, d=16, dv=16, s_kv=S_KV, dtype=torch.float32, seed=0):
    gen = torch.Generator().manual_seed(seed)
    shapes = ((b, s, g, h, d), (b, g, s_kv, d), (b, g, s_kv, dv))
    return tuple(torch.randn(x, generator=gen).to(dtype).to(DEVICE) for x in shapes)


def spans_of(*rows: list[tuple[int, int]], dtype=torch.int32) -> torch.Tensor:
    """One [1, len(rows), 1, n, 2] tensor; short rows are filled with empty spans."""
    n = max(len(r) for r in rows)
    filled = [r + [(0, 0)] * (n - len(r)) for r in rows]
    return torch.tensor(filled, dtype=dtype, device=DEVICE).view(1, len(rows), 1, n, 2)


SPAN = st.tuples(st.integers(-20, S_KV + 30), st.integers(-20, S_KV + 30))
SPANS = st.lists(SPAN, min_size=1, max_size=9)


@settings(max_examples=40, deadline=None)
@given(spans=SPANS, dtype=st.sampled_from(DTYPES), ints=st.sampled_from([torch.int32, torch.int64]))
def test_any_spans(spans, dtype, ints) -> None:
    q, k, v = draw(dtype=dtype)
    r = spans_of(spans, dtype=ints)
    kept = r.clone()
    oracle.assert_close(nsa_kernels.selection_ranges(q, k, v, r), oracle.ranges(q, k, v, r), dtype)
    assert torch.equal(r, kept)


@settings(max_examples=20, deadline=None)
@given(spans=SPANS, order=st.randoms(use_true_random=False))
def test_permuting_spans_changes_nothing(spans, order) -> None:
    q, k, v = draw()
    shuffled = list(spans)
    order.shuffle(shuffled)
    a = nsa_kernels.selection_ranges(q, k, v, spans_of(spans))
    b = nsa_kernels.selection_ranges(q, k, v, spans_of(shuffled))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(spans=SPANS, which=st.integers(0, 8), at=st.floats(0, 1))
def test_splitting_a_span_changes_nothing(spans, which, at) -> None:
    q, k, v = draw()
    start, end = spans[which % len(spans)]
    middle = start + round((max(end, start) - start) * at)
    parts = list(spans)
    parts[which % len(spans)] = (start, middle)
    a = nsa_kernels.selection_ranges(q, k, v, spans_of(spans))
    b = nsa_kernels.selection_ranges(q, k, v, spans_of([*parts, (middle, end)]))
    for x, y in zip(a, b, strict=True):
        torch.testing.assert_close(x, y, atol=1e-5, rtol=1e-5)


@settings(max_examples=20, deadline=None)
@given(spans=SPANS)
def test_keys_outside_the_ranges_change_nothing(spans) -> None:
    q, k, v = draw()
    r = spans_of(spans)
    outside = ~oracle.union_mask(r.clamp(0, S_KV), S_KV).view(1, 1, S_KV, 1)
    noisy = [torch.where(outside, torch.full_like(x, float("nan")), x) for x in (k, v)]
    a = nsa_kernels.selection_ranges(q, k, v, r)
    b = nsa_kernels.selection_ranges(q, *noisy, r)
    for x, y in zip(a, b, strict=True):
        assert torch.equal(x, y)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("h", [1, 8, 17])
def test_groups_batches_and_unequal_head_dims(h, dtype) -> None:
    q, k, v = draw(b=2, s=3, g=2, h=h, d=40, dv=24, dtype=dtype)
    gen = torch.Generator().manual_seed(3)
    start = torch.randint(0, S_KV, (2, 3, 2, 5), generator=gen)
    r = torch.stack([start, start + torch.randint(0, 60, start.shape, generator=gen)], -1)
    r = r.to(DEVICE)
    oracle.assert_close(nsa_kernels.selection_ranges(q, k, v, r), oracle.ranges(q, k, v, r), dtype)


def test_ranges_without_batch_axis_and_strided_inputs() -> None:
    q, k, v = draw(b=2, s=2, g=2, h=4, d=32, dv=32)
    r = torch.tensor([[3, 40], [30, 90]], dtype=torch.int32, device=DEVICE)
    wide = r.expand(2, 2, 2, 2)
    want = oracle.ranges(q, k, v, wide.expand(2, 2, 2, 2, 2))
    k_t = k.transpose(1, 2).contiguous().transpose(1, 2)
    v_t = v.mT.contiguous().mT
    q_t = q.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    got = nsa_kernels.selection_ranges(q_t, k_t, v_t, wide)
    oracle.assert_close(got, want, torch.float32)


@pytest.mark.parametrize(
    "spans",
    [
        [[(0, 0)], [(7, 3)], [(200, 300)], [(-9, -1)]],
        [[(0, 1)], [(149, 150)]],
        [[(0, 150), (10, 20)], [(10, 20), (20, 30)]],
    ],
)
def test_edges(spans) -> None:
    q, k, v = draw(s=len(spans))
    r = spans_of(*spans)
    got = nsa_kernels.selection_ranges(q, k, v, r)
    oracle.assert_close(got, oracle.ranges(q, k, v, r), torch.float32)
    assert not torch.isnan(got[0]).any() and not torch.isnan(got[1]).any()


def test_single_key_cache() -> None:
    q, k, v = draw(s_kv=1)
    out, _ = nsa_kernels.selection_ranges(q, k, v, spans_of([(0, 1), (0, 5)]))
    torch.testing.assert_close(out[0, 0, 0, 0], v[0, 0, 0])


def test_no_spans_and_no_keys() -> None:
    q, k, v = draw()
    none = torch.zeros((1, 1, 1, 0, 2), dtype=torch.int32, device=DEVICE)
    for keys in (k, k[:, :, :0]):
        out, lse = nsa_kernels.selection_ranges(q, keys, v[:, :, : keys.shape[2]], none)
        assert out.abs().max() == 0 and torch.isneginf(lse).all()


def test_many_spans_take_the_search_path() -> None:
    q, k, v = draw(s=2)
    gen = torch.Generator().manual_seed(5)
    start = torch.randint(-5, S_KV, (1, 2, 1, 90), generator=gen)
    r = torch.stack([start, start + torch.randint(-2, 4, start.shape, generator=gen)], -1)
    r = r.to(DEVICE)
    got = nsa_kernels.selection_ranges(q, k, v, r)
    oracle.assert_close(got, oracle.ranges(q, k, v, r), torch.float32)


@settings(max_examples=50, deadline=None)
@given(spans=SPANS)
def test_disjoint_spans(spans) -> None:
    r = spans_of(spans).cpu()
    start, before = disjoint_spans(r, S_KV)
    keys = [
        s + p
        for s, lo, hi in zip(
            start.flatten().tolist(),
            before.flatten()[:-1].tolist(),
            before.flatten()[1:].tolist(),
            strict=True,
        )
        for p in range(hi - lo)
    ]
    assert keys == oracle.union_mask(r.clamp(0, S_KV), S_KV).flatten().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, v, r: (q, k, v, r.float()), TypeError, "int32 or int64"),
        (lambda q, k, v, r: (q, k, v, r[..., :1]), ValueError, "expected q"),
        (lambda q, k, v, r: (q[0], k, v, r), ValueError, "expected q"),
        (lambda q, k, v, r: (q, k, v[:, :, 1:], r), ValueError, "expected q"),
    ],
)
def test_bad_inputs_are_refused(change, error, word) -> None:
    with pytest.raises(error, match=word):
        nsa_kernels.selection_ranges(*change(*draw(), spans_of([(0, 5)])))


def test_a_config_of_another_shape_is_refused() -> None:
    few, many = draw(h=2), draw(h=100)
    r = spans_of([(3, 90), (80, 140)])
    config = nsa_kernels.chosen_config("selection_ranges", *few, r)
    with pytest.raises(ValueError, match="q has 100"):
        nsa_kernels.selection_ranges(*many, r, config=config)
    with pytest.raises(ValueError, match="no splits"):
        nsa_kernels.selection_ranges(*few, r, config=dataclasses.replace(config, splits=0))
    long = draw(h=2, s_kv=900)
    r = spans_of([(3, 90), (80, 840)])
    got = nsa_kernels.selection_ranges(*long, r, config=config)
    oracle.assert_close(got, oracle.ranges(*long, r), torch.float32)


def test_no_rows_have_a_config_too() -> None:
    r = spans_of([(0, 5)])
    q, k, v = (x[:0] for x in draw())
    assert nsa_kernels.chosen_config("selection_ranges", q, k, v, r[:0]).splits >= 1
