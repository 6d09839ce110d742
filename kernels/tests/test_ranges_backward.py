"""Gradients of ``selection_ranges`` against autograd through the float64 reference."""

from __future__ import annotations

import nsa_kernels
import oracle
import pytest
import torch
from nsa_kernels import Policy
from nsa_kernels.selection.ranges import backward as ranges_backward

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float16: 4e-3, torch.bfloat16: 3e-2, torch.float32: 3e-5}
# B, S, G, h, D, Dv, S_kv, n
SHAPES = [
    (2, 5, 2, 3, 16, 24, 70, 3),
    (1, 40, 1, 1, 32, 32, 150, 1),
    (1, 3, 2, 17, 64, 16, 40, 5),
    (1, 2, 1, 4, 16, 16, 130, 70),
]


def draw(shape, dtype=torch.float32, seed=1):
    b, s, g, h, d, dv, s_kv, n = shape
    gen = torch.Generator().manual_seed(seed)
    shapes = ((b, s, g, h, d), (b, g, s_kv, d), (b, g, s_kv, dv))
    q, k, v = (torch.randn(x, generator=gen).to(dtype).to(DEVICE) for x in shapes)
    start = torch.randint(-5, s_kv, (b, s, g, n), generator=gen)
    # Overlapping, reversed and out of bounds among them; the first row selects nothing.
    r = torch.stack([start, start + torch.randint(-3, 30, start.shape, generator=gen)], -1)
    r[0, 0, 0] = 0
    return q, k, v, r.to(torch.int32).to(DEVICE)


def gradients(q, k, v, r, grad_out, grad_lse=None, scale=None):
    """Of the kernel and of the reference."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out, lse = nsa_kernels.selection_ranges(*leaves, r, sm_scale=scale)
    pairs = [(out, grad_out)] if grad_lse is None else [(out, grad_out), (lse, grad_lse)]
    got = torch.autograd.grad([p[0] for p in pairs], leaves, [p[1] for p in pairs])
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    spans = r if r.dim() == 5 else r.expand(q.shape[0], *r.shape)
    want = oracle.ranges(*exact, spans, scale)
    some = torch.isfinite(want[1])
    total = (want[0] * grad_out.double()).sum()
    if grad_lse is not None:
        total = total + (want[1][some] * grad_lse.double()[some]).sum()
    return got, torch.autograd.grad(total, exact)


def assert_right(got, want, dtype) -> None:
    for have, right in zip(got, want, strict=True):
        assert have.dtype == dtype and have.shape == right.shape and have.is_contiguous()
        unit = max(1.0, float(right.abs().max()))
        torch.testing.assert_close(
            have.double() / unit, right / unit, atol=TOLERANCE[dtype], rtol=0
        )


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_gradients(shape, dtype) -> None:
    q, k, v, r = draw(shape, dtype)
    grad_out = torch.randn_like(q[..., :1].expand(*q.shape[:-1], v.shape[-1]))
    got, want = gradients(q, k, v, r, grad_out)
    assert_right(got, want, dtype)
    assert not got[0][0, 0, 0].any()


def test_spans_without_a_batch_axis_a_scale_and_strides() -> None:
    q, k, v, r = draw(SHAPES[0])
    q = q.transpose(1, 2).contiguous().transpose(1, 2)
    k = torch.cat([k, k], -1)[..., : k.shape[-1]]
    grad_out = torch.randn(1, device=q.device).expand(*q.shape[:-1], v.shape[-1])
    got, want = gradients(q, k, v, r[0], grad_out, scale=0.3)
    assert_right(got, want, torch.float32)


def test_the_lse_is_differentiable_too() -> None:
    q, k, v, r = draw(SHAPES[0])
    grad_out = torch.randn(*q.shape[:-1], v.shape[-1], device=q.device)
    got, want = gradients(q, k, v, r, grad_out, torch.randn(q.shape[:-1], device=q.device))
    assert_right(got, want, torch.float32)


def test_nothing_selected_gives_zeros_and_no_spans_do_too() -> None:
    q, k, v, r = draw(SHAPES[0])
    for spans in (torch.zeros_like(r), r[:, :, :, :0]):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        out, _ = nsa_kernels.selection_ranges(*leaves, spans)
        grads = torch.autograd.grad(out.sum(), leaves)
        assert not any(g.any() for g in grads)


def test_tiles_that_do_not_fit_are_planned_later(monkeypatch) -> None:
    q, k, v, r = draw(SHAPES[1])
    grad_out = torch.randn_like(q)
    whole, _ = gradients(q, k, v, r, grad_out)
    monkeypatch.setattr(
        ranges_backward, "MAX_PLAN_BYTES", 2 * ranges_backward.LISTED_BYTES * q.shape[1]
    )
    parts, want = gradients(q, k, v, r, grad_out)
    assert_right(parts, want, torch.float32)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))


@pytest.mark.parametrize("shares", [2, 9])
def test_shares_of_a_list_add_up(shares, monkeypatch) -> None:
    """However many programs share the queries of a tile, some of them without any."""
    q, k, v, r = draw(SHAPES[0])
    monkeypatch.setattr(ranges_backward, "_shares", lambda *_: shares)
    got, want = gradients(q, k, v, r, torch.randn_like(q[..., :1].expand(*q.shape[:-1], 24)))
    assert_right(got, want, torch.float32)


def test_spans_at_the_edges_of_tiles() -> None:
    """Tiles of 64 keys selected whole, up to each edge of their halves, twice, and far beyond."""
    edges = [
        [0, 64],
        [64, 96],
        [96, 128],
        [31, 33],
        [63, 65],
        [127, 192],
        [-(2**40), 2**40],
        [9, 9],
    ]
    q, k, v, _ = draw((1, len(edges), 1, 2, 16, 16, 192, 1), torch.bfloat16)
    r = torch.tensor(edges, device=DEVICE).view(1, -1, 1, 1, 2)
    got, want = gradients(q, k, v, torch.cat([r, r], 3), torch.randn_like(q))
    assert_right(got, want, torch.bfloat16)


@pytest.mark.parametrize("of", [1, 2], ids=["k", "v"])
@pytest.mark.parametrize("held", [float("nan"), float("inf")])
def test_keys_nobody_selects_have_no_gradient_whatever_they_hold(of, held) -> None:
    inputs = draw((1, 3, 1, 2, 16, 16, 80, 1))
    r = torch.tensor([[0, 20], [5, 9], [70, 80]], device=DEVICE).view(1, 3, 1, 1, 2)
    inputs[of][:, :, 20:70] = held
    leaves = [x.requires_grad_() for x in inputs[:3]]
    grads = torch.autograd.grad(nsa_kernels.selection_ranges(*leaves, r)[0].sum(), leaves)
    assert all(torch.isfinite(g).all() for g in grads)
    assert not grads[1][:, :, 20:70].any() and not grads[2][:, :, 20:70].any()


def test_results_of_the_forward_may_have_any_strides() -> None:
    q, k, v, r = draw(SHAPES[0])
    out, lse = nsa_kernels.selection_ranges(q, k, v, r)
    grad = torch.randn_like(out)
    want = ranges_backward.launch_ranges_backward(q, k, v, r, out, lse, grad, None, None)
    out, lse = (x.transpose(1, 3).contiguous().transpose(1, 3) for x in (out, lse))
    got = ranges_backward.launch_ranges_backward(q, k, v, r, out, lse, grad, None, None)
    assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_spans_that_lie_far_apart() -> None:
    """Between the spans of a row are more elements than int32 can count.

    Memory is reserved, and only what is used of it touched: zeros of 8 GiB took 20 s to write.
    """
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("takes 8 GiB")
    q, k, v, _ = draw((1, 3, 1, 2, 16, 16, 40, 1))
    store = torch.empty(2**31 + 2, dtype=torch.int32, device=DEVICE)
    far = store.as_strided((1, 3, 1, 3, 2), (0, 0, 0, 2**30, 1))
    far[0, 0, 0] = torch.tensor([[3, 8], [20, 25], [31, 40]])
    grad = torch.randn_like(q)
    got, _ = gradients(q, k, v, far, grad)
    near, _ = gradients(q, k, v, far.contiguous(), grad)
    assert all(torch.equal(a, b) for a, b in zip(got, near, strict=True))


def test_twice_the_same_bits() -> None:
    q, k, v, r = draw(SHAPES[0], torch.float16)
    grad_out = torch.randn(*q.shape[:-1], v.shape[-1], device=q.device).half()
    first, _ = gradients(q, k, v, r, grad_out)
    second, _ = gradients(q, k, v, r, grad_out)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))


def test_the_reference_path_passes_gradcheck() -> None:
    q, k, v, r = draw((1, 2, 1, 2, 16, 16, 20, 2), torch.float64)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    assert torch.autograd.gradcheck(
        lambda *qkv: nsa_kernels.selection_attention(*qkv, r), leaves, fast_mode=True
    )


def test_the_fallback_adds_up_its_gradients_in_float32() -> None:
    """In bfloat16 sums of hundreds of terms are off by per cents on a GPU."""
    q, k, v, _ = draw((1, 600, 1, 4, 32, 32, 64, 1), torch.bfloat16)
    r = torch.tensor([0, 64], dtype=torch.int32, device=DEVICE).expand(1, 600, 1, 1, 2)
    grad_out = torch.randn_like(q)
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    exact = [x.detach().double().requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(nsa_kernels.packed_sdpa(*leaves, r), leaves, grad_out)
    want = torch.autograd.grad(nsa_kernels.packed_sdpa(*exact, r), exact, grad_out.double())
    for have, right in zip(got, want, strict=True):
        assert (have.double() - right).norm() < 0.01 * right.norm()


def test_operators_are_well_formed() -> None:
    q, k, v, r = draw((1, 2, 1, 2, 16, 16, 20, 2))
    leaves = [x.requires_grad_() for x in (q, k, v)]
    torch.library.opcheck(torch.ops.nsa_kernels.selection_ranges.default, (*leaves, r, None, None))


@pytest.mark.parametrize("policy", [None, Policy(), Policy(enabled=False)])
def test_compiled_training_has_the_same_gradients(policy) -> None:
    q, k, v, r = draw((1, 2, 1, 2, 16, 16, 20, 2))
    leaves = [x.requires_grad_() for x in (q, k, v)]

    def loss(q, k, v):
        return nsa_kernels.selection_attention(q, k, v, r, policy=policy).square().sum()

    compiled = torch.compile(loss, backend="aot_eager", fullgraph=True)
    got = torch.autograd.grad(compiled(*leaves), leaves)
    want = torch.autograd.grad(loss(*leaves), leaves)
    for have, right in zip(got, want, strict=True):
        torch.testing.assert_close(have, right, atol=2e-5, rtol=1e-4)


def test_a_given_config_is_refused_when_a_gradient_is_needed() -> None:
    q, k, v, r = draw(SHAPES[0])
    config = nsa_kernels.Config(16, 16, 1, 0, 1, 4, 2)
    with pytest.raises(ValueError, match="has no backward"):
        nsa_kernels.selection_ranges(q.requires_grad_(), k, v, r, config=config)
