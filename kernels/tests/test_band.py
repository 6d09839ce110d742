"""Sliding window and compressed keys against float64 (interpreter on the CPU, or CUDA)."""

from __future__ import annotations

import sys

import nsa_kernels
import oracle
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nsa_kernels.band import backward as band_backward
from nsa_kernels.band.geometry import packed_band

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float16, torch.bfloat16, torch.float32]
RELATIVE = {torch.float16: 2e-3, torch.bfloat16: 1.5e-2, torch.float32: 1e-5}


def randn(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=gen).to(dtype).to(DEVICE)


def heads(b, t, n, hq, h, d, dv, dtype=torch.float32):
    return (
        randn(b, t, hq, d, dtype=dtype),
        randn(b, n, h, d, dtype=dtype, seed=1),
        randn(b, n, h, dv, dtype=dtype, seed=2),
    )


def cu(lengths) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).to(DEVICE)


def check(call, qkv, keep) -> None:
    """Results and gradients, those of the LSE with them, against autograd in float64."""
    dtype = qkv[0].dtype
    leaves = [x.detach().requires_grad_() for x in qkv]
    exact = [x.detach().double().requires_grad_() for x in qkv]
    out, lse = call(*leaves)
    want, want_lse, _ = oracle.banded(*exact, keep.to(DEVICE))
    oracle.assert_close((out.detach(), lse.detach()), (want.detach(), want_lse.detach()), dtype)
    grad, grad_lse = randn(*out.shape, seed=3).to(dtype), randn(*lse.shape, seed=4)
    seen = keep.any(-1).to(DEVICE)[None, :, None].expand_as(lse)
    assert torch.equal(torch.isneginf(lse), ~seen)
    loss = (out.float() * grad).sum() + (lse * grad_lse)[seen].sum()
    exact_loss = (want * grad.double()).sum() + (want_lse * grad_lse.double())[seen].sum()
    got = torch.autograd.grad(loss, leaves)
    for a, b in zip(got, torch.autograd.grad(exact_loss, exact), strict=True):
        assert a.dtype == dtype
        b = b.nan_to_num(0)  # the LSE of no keys has no gradient
        assert float((a.double() - b).norm()) <= RELATIVE[dtype] * max(float(b.norm()), 1e-3)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("b", "t", "hq", "h", "d", "dv", "window"),
    [
        (1, 1, 1, 1, 16, 16, 1),
        (2, 70, 4, 2, 32, 48, 1),
        (1, 140, 3, 1, 64, 64, 64),
        (1, 150, 2, 2, 80, 40, 129),
        (1, 90, 2, 1, 16, 16, 512),
        (1, 60, 2, 1, 256, 256, 33),
    ],
)
def test_sliding_window(dtype, b, t, hq, h, d, dv, window) -> None:
    qkv = heads(b, t, t, hq, h, d, dv, dtype)
    keep = oracle.window_mask([t], window)
    check(lambda *x: nsa_kernels.sliding_window(*x, window=window), qkv, keep)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("b", "t", "hq", "h", "d", "dv", "block", "stride"),
    [
        (1, 32, 1, 1, 16, 16, 32, 16),
        (1, 31, 2, 1, 16, 16, 32, 16),
        (2, 130, 4, 2, 32, 48, 32, 16),
        (1, 150, 3, 1, 64, 64, 8, 4),
        (1, 100, 2, 1, 80, 40, 7, 7),
    ],
)
def test_compressed(dtype, b, t, hq, h, d, dv, block, stride) -> None:
    keep = oracle.compressed_mask([t], block, stride)
    qkv = heads(b, t, keep.shape[1], hq, h, d, dv, dtype)

    def call(*x):
        return nsa_kernels.compressed_attention(*x, block=block, stride=stride)

    if keep.shape[1]:
        check(call, qkv, keep)
    else:
        out, lse = call(*qkv)
        assert out.abs().max() == 0 and torch.isneginf(lse).all()


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 90), min_size=1, max_size=5).filter(lambda x: sum(x) > 0),
    window=st.integers(1, 100),
    tail=st.sampled_from([0, 0, 7]),
)
def test_packed_windows(lengths, window, tail) -> None:
    total = sum(lengths) + tail
    qkv = heads(1, total, total, 2, 1, 16, 16)
    keep = torch.zeros(total, total, dtype=torch.bool)
    keep[: total - tail, : total - tail] = oracle.window_mask(lengths, window)
    check(lambda *x: nsa_kernels.sliding_window(*x, cu(lengths), window=window), qkv, keep)


@settings(max_examples=8, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 120), min_size=1, max_size=5).filter(lambda x: max(x) >= 32),
)
def test_packed_compressed_keys(lengths) -> None:
    keep = oracle.compressed_mask(lengths, 32, 16)
    qkv = heads(1, *keep.shape, 2, 1, 16, 16)
    keys = cu([max(0, (n - 32) // 16 + 1) for n in lengths])
    check(lambda *x: nsa_kernels.compressed_attention(*x, cu(lengths), keys), qkv, keep)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("t", "block", "stride", "block_size"), [(150, 32, 16, 64), (70, 8, 4, 32), (50, 32, 16, 16)]
)
def test_block_scores(dtype, t, block, stride, block_size) -> None:
    """Equations 8 to 10: each weight goes to every block it shares strides with, once a stride."""
    keep = oracle.compressed_mask([t], block, stride)
    qkv = heads(2, t, keep.shape[1], 4, 2, 32, 32, dtype)
    out, lse, scores = nsa_kernels.compressed_attention_with_scores(
        *qkv, block=block, stride=stride, block_size=block_size
    )
    _, _, weights = oracle.banded(*qkv, keep.to(DEVICE))
    want = torch.zeros(2, t, 2, -(-t // block_size), dtype=torch.float64, device=DEVICE)
    for key in range(keep.shape[1]):
        for place in range(key, key + block // stride):
            if place * stride // block_size < want.shape[3]:
                want[..., place * stride // block_size] += weights[..., key]
    torch.testing.assert_close(scores.double(), want, atol=1e-4, rtol=1e-4)
    plain = nsa_kernels.compressed_attention(*qkv, block=block, stride=stride)
    assert torch.equal(out, plain[0]) and torch.equal(lse, plain[1])


def test_tables_of_packed_sequences() -> None:
    """Each query's keys, each key's queries; some sequences have neither, and there is a tail."""
    lengths, tail = [40, 0, 5, 130, 31], 9
    counts = [max(0, (n - 8) // 4 + 1) for n in lengths]
    complete = oracle.compressed_mask(lengths, 8, 4)
    # Three keys more than the first sequence completes, before those of the others.
    more = torch.cat(
        [complete[:, : counts[0]], complete[:, :3] & False, complete[:, counts[0] :]], 1
    )
    for keep, keys, band in (
        (oracle.window_mask(lengths, 7), lengths, (1, 1, 7)),
        (complete, counts, (8, 4, 0)),
        (more, [counts[0] + 3, *counts[1:]], (8, 4, 0)),
    ):
        total, n = keep.shape[0] + tail, keep.shape[1] + tail
        q = randn(1, total, 1, 16)
        made = packed_band(q, n, cu(lengths), cu(keys), *band)
        for table, mask in ((made.keys, keep), (made.queries, keep.T)):
            assert bool((table[:, 1:] >= table[:, :-1]).all())
            for (first, end), seen in zip(table.T.tolist(), mask, strict=False):
                assert list(range(first, end)) == seen.nonzero().flatten().tolist()
            behind = table[:, mask.shape[0] :]
            assert bool((behind[0] == behind[1]).all())


@pytest.mark.parametrize("of", ["window", "compressed", "packed"])
def test_shares_of_a_key_tile_add_up(of, monkeypatch) -> None:
    """However many programs share the queries that see a tile of keys, some of them without any."""
    keys = 3 if of == "compressed" else 70
    q, k, v = (x.requires_grad_() for x in heads(1, 70, keys, 2, 1, 16, 32))

    def gradients(shares):
        monkeypatch.setattr(band_backward, "walk_shares", lambda *_: shares)
        if of == "compressed":
            out, _ = nsa_kernels.compressed_attention(q, k, v)
        else:
            packed = (cu([30, 0, 40]),) if of == "packed" else ()
            out, _ = nsa_kernels.sliding_window(q, k, v, *packed, window=20)
        return torch.autograd.grad(out.square().sum(), (q, k, v))

    one = gradients(1)
    for shares in (2, 9):
        again = gradients(shares)
        assert all(torch.equal(a, b) for a, b in zip(again, gradients(shares), strict=True))
        for a, b in zip(again, one, strict=True):
            torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("lengths", [None, (40, 30)])
@pytest.mark.parametrize("window", [2**31 - 1, 2**31, sys.maxsize])
def test_a_window_beyond_int32_is_all_keys(window, lengths) -> None:
    """2**31 - 1 wrapped round in the backward: dk and dv were 0."""
    keep = oracle.window_mask(lengths or [70], 70)
    packed = () if lengths is None else (cu(lengths),)
    qkv = heads(1, 70, 70, 2, 1, 16, 16)
    check(lambda *x: nsa_kernels.sliding_window(*x, *packed, window=window), qkv, keep)


def test_compressed_keys_that_are_not_there_are_not_read() -> None:
    """cu_keys promises more keys than the tensor has; behind it in memory are others."""
    q, k, v = heads(1, 100, 9, 2, 1, 16, 16)
    some = (q, k[:, :3], v[:, :3])
    for leaf in some:
        leaf.requires_grad_()
    found = []
    for keys in (3, 5, 2**31 - 1):
        out, lse = nsa_kernels.compressed_attention(*some, cu([100]), cu([keys]))
        found.append((out, lse, *torch.autograd.grad(out.square().sum(), some)))
    for other in found[1:]:
        assert all(torch.equal(a, b) for a, b in zip(found[0], other, strict=True))


@pytest.mark.parametrize("of", ["k", "v"])
@pytest.mark.parametrize("packed", [False, True])
def test_keys_nobody_sees_have_no_gradient_whatever_they_hold(packed, of) -> None:
    q, k, v = heads(1, 70, 12, 1, 1, 16, 16, torch.bfloat16)
    tables = (cu([40, 30]), cu([4, 8])) if packed else ()
    nobody = [9, 10, 11] if packed else [8, 9, 10, 11]
    (k if of == "k" else v)[:, nobody] = float("nan")
    some = [x.detach().requires_grad_() for x in (q, k, v)]
    out, _ = nsa_kernels.compressed_attention(*some, *tables, block=8, stride=8)
    _, dk, dv = torch.autograd.grad(out.sum(), some)
    assert dk[:, nobody].abs().max() == 0 and dv[:, nobody].abs().max() == 0


@pytest.mark.parametrize(
    ("edges", "edges_of_keys", "n"),
    [
        # A tile of queries whose first sees all 64 keys, the last 5: five keys behind were read.
        ([0, 32, 64], [63, 64, 5], 64),
        # A place so far from its sequence's first that keys wrapped round to far below 0.
        ([0, 32, -(2**31) + 100, 64], [100, 128, 64, 128], 128),
    ],
)
def test_lengths_that_decrease_touch_nothing_out_of_bounds(edges, edges_of_keys, n) -> None:
    q, k, v = heads(1, 64, 2 * n, 1, 1, 16, 16, torch.bfloat16)
    packed = [torch.tensor(x, dtype=torch.int32, device=DEVICE) for x in (edges, edges_of_keys)]
    found = []
    for behind in (0.0, 100.0):
        k[:, n:], v[:, n:] = behind, behind
        some = [x.detach().requires_grad_() for x in (q, k[:, :n], v[:, :n])]
        out, lse = nsa_kernels.compressed_attention(*some, *packed, block=1, stride=1)
        found.append((out, lse, *torch.autograd.grad(out.sum(), some)))
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True)


CALLS = {
    "sliding_window": (lambda *x: nsa_kernels.sliding_window(*x, window=50), 130),
    "compressed": (lambda *x: nsa_kernels.compressed_attention(*x), 7),
    "with_scores": (lambda *x: nsa_kernels.compressed_attention_with_scores(*x), 7),
}


@pytest.mark.parametrize("name", CALLS)
def test_strides_are_honoured_and_inputs_kept(name) -> None:
    call, n = CALLS[name]
    qkv = heads(2, 130, n, 4, 2, 32, 16)
    odd = [x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0) for x in qkv]
    kept = [x.clone() for x in odd]
    grads = []
    for inputs in (qkv, odd):
        leaves = [x.detach().requires_grad_() for x in inputs]
        found = call(*leaves)
        wide = torch.stack([torch.ones_like(found[0]), -torch.ones_like(found[0])], -1)
        grads.append((*found, *torch.autograd.grad(found[0], leaves, wide[..., 0])))
    for a, b in zip(*grads, strict=True):
        assert torch.equal(a, b)
    assert all(torch.equal(a, b) for a, b in zip(kept, odd, strict=True))


@pytest.mark.parametrize("name", CALLS)
def test_one_graph_under_torch_compile(name) -> None:
    call, n = CALLS[name]
    leaves = [x.requires_grad_() for x in heads(1, 130, n, 4, 2, 32, 16)]

    def loss(*x):
        out, lse, *_ = call(*x)
        return out.square().sum() + lse[:, 60:].sum()

    compiled = torch.compile(loss, fullgraph=True, backend="aot_eager")
    want = torch.autograd.grad(loss(*leaves), leaves)
    got = torch.autograd.grad(compiled(*leaves), leaves)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_operators_keep_their_promises() -> None:
    """Schemas, fake tensors and autograd registrations, by torch's own check."""
    q, k, v = (x.requires_grad_() for x in heads(1, 70, 70, 2, 1, 16, 16))
    tests = ("test_schema", "test_autograd_registration", "test_faketensor")
    ops = torch.ops.nsa_kernels
    torch.library.opcheck(
        ops.sliding_window.default, (q, k, v, cu([40, 30]), 20, 0.25), test_utils=tests
    )
    torch.library.opcheck(
        ops.compressed_attention.default,
        (q, k[:, :3], v[:, :3], None, None, 32, 16, 0.25),
        test_utils=tests,
    )


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, v: ((q.double(), k, v), {}), TypeError, "dtype"),
        (lambda q, k, v: ((q, k[:, :-1], v[:, :-1]), {}), ValueError, "equally long"),
        (lambda q, k, v: ((q[:, :, :3], k, v), {}), ValueError, "multiple of H"),
        (lambda q, k, v: ((q, k, v), {"window": 0}), ValueError, "window"),
        (lambda q, k, v: ((q, k, v), {"sm_scale": -1.0}), ValueError, "positive"),
        (lambda q, k, v: ((q, k, v, cu([40]).long()), {}), TypeError, "int32"),
        (lambda q, k, v: ((q, k, v, cu([40])), {}), ValueError, "packed in B = 1"),
    ],
)
def test_bad_inputs_are_refused(change, error, word) -> None:
    args, options = change(*heads(2, 40, 40, 4, 2, 16, 16))
    with pytest.raises(error, match=word):
        nsa_kernels.sliding_window(*args, **{"window": 8, **options})


def test_bad_compressed_inputs_are_refused() -> None:
    q, k, v = heads(1, 40, 2, 4, 2, 16, 16)
    with pytest.raises(ValueError, match="both"):
        nsa_kernels.compressed_attention(q, k, v, cu([40]))
    with pytest.raises(ValueError, match="must divide"):
        nsa_kernels.compressed_attention_with_scores(q, k, v, block=30)
    with pytest.raises(ValueError, match="must divide"):
        nsa_kernels.compressed_attention_with_scores(q, k, v, stride=0)


@pytest.mark.parametrize("of", ["window", "compressed"])
def test_a_gradient_of_a_gradient_is_an_error(of) -> None:
    """There is none, and zero would be a wrong one."""
    q, k, v = (x.requires_grad_() for x in heads(1, 40, 40, 2, 1, 16, 16))
    if of == "window":
        out, _ = nsa_kernels.sliding_window(q, k, v, window=9)
    else:
        n = (40 - 8) // 4 + 1
        out, _ = nsa_kernels.compressed_attention(q, k[:, :n], v[:, :n], block=8, stride=4)
    with pytest.raises(RuntimeError, match="no second derivative"):
        torch.autograd.grad(out.sum(), q, create_graph=True)
