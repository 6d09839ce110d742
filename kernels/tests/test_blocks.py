"""``block_selection_attention``, both directions (interpreter on the CPU, or CUDA)."""

from __future__ import annotations

import dataclasses

import nsa_kernels
import nsa_kernels.selection.blocks.config as block_config
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from nsa_kernels.selection.blocks.naive import naive_blocks
from nsa_kernels.selection.blocks.operators import _block_major, _plan, _query_major

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}


def draw(batch, length, hq, h, d, dv, chosen, dtype, block_size=16, seed=0):
    """q, k, v, d_out and indices in which all that may be void occurs."""
    gen = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=gen).to(dtype).to(DEVICE)

    blocks = -(-length // block_size)
    index = torch.randint(-1, blocks + 1, (batch, length, h, chosen), generator=gen)
    return (
        normal(batch, length, hq, d),
        normal(batch, length, h, d),
        normal(batch, length, h, dv),
        normal(batch, length, hq, dv),
        index.to(torch.int32).to(DEVICE),
    )


def gradients(q, k, v, d_out, call):
    leaves = [x.detach().clone().requires_grad_() for x in (q, k, v)]
    out, lse = call(*leaves)
    return out, lse, *torch.autograd.grad(out, leaves, d_out.to(out.dtype))


def formula(q, k, v, d_out, index, block_size=16, cu=None):
    """Output, LSE and gradients in float64."""
    scale = q.shape[-1] ** -0.5
    out, lse, *found = gradients(
        q.double(),
        k.double(),
        v.double(),
        d_out,
        lambda *x: naive_blocks(*x, index, block_size, scale, cu),
    )
    return out.detach().contiguous(), lse.detach().contiguous(), *found


def check(q, k, v, d_out, index, block_size=16, cu=None, **options):
    """Output, LSE and gradients of the kernels against the formula."""
    want = formula(q, k, v, d_out, index, block_size, cu)
    got = gradients(
        q,
        k,
        v,
        d_out,
        lambda *x: nsa_kernels.block_selection_attention(
            *x, index, block_size=block_size, cu_seqlens=cu, return_lse=True, **options
        ),
    )
    for name, a, b in zip(("out", "lse", "dq", "dk", "dv"), got, want, strict=True):
        assert torch.equal(a.isinf(), b.isinf()), name
        error = (a.double() - b).nan_to_num(0.0, 0.0, 0.0).abs().max().item()
        size = max(1.0, b.nan_to_num(0.0, 0.0, 0.0).abs().max().item())
        assert error <= TOLERANCE[q.dtype] * size, (name, error)
    return got


@pytest.mark.parametrize("dtype", list(TOLERANCE))
@pytest.mark.parametrize(
    "shape",
    [(1, 70, 4, 2, 16, 16, 4), (2, 40, 6, 2, 16, 24, 3), (1, 33, 1, 1, 40, 16, 16)],
)
def test_matches_the_formula(shape, dtype) -> None:
    check(*draw(*shape, dtype))


def test_large_groups_and_the_usual_block() -> None:
    check(*draw(1, 130, 64, 1, 16, 16, 2, torch.float32, 64), block_size=64)


@pytest.mark.parametrize("chosen", [17, 50])
def test_more_choices_than_a_kernel_unrolls(chosen: int) -> None:
    q, k, v, d_out, index = draw(1, 40, 2, 1, 16, 16, chosen, torch.float32)
    out, lse, *_ = check(q, k, v, d_out, index)
    again, lse_again = torch.ops.nsa_kernels.block_query_major(q, k, v, index, None, 16, 0.25)
    assert torch.allclose(again, out, atol=1e-5) and torch.allclose(lse_again, lse, atol=1e-5)


@pytest.mark.parametrize(
    ("size", "strides"),
    [(40 << 26, (40 << 26, 1 << 26, 16, 1)), (4 << 30, (4 << 30, 16, 1 << 30, 1))],
    ids=["tokens far apart", "heads far apart"],
)
def test_offsets_beyond_int32(monkeypatch, size, strides) -> None:
    """Memory is reserved, and only what is used of it touched."""
    *qkv, d_out, index = draw(1, 40, 4, 1, 16, 16, 2, torch.float32)
    q = torch.empty(size, dtype=torch.float16, device=DEVICE)
    q = q.as_strided((1, 40, 4, 16), strides).copy_(qkv[0])
    assert block_config.beyond_int32(q) and not block_config.beyond_int32(*qkv)
    k, v = (x.half() for x in qkv[1:])
    monkeypatch.setattr("nsa_kernels.selection.blocks.api.query_major_wins", lambda shape: False)

    def results(q):
        plan = nsa_kernels.plan_blocks(q, k, v, index, block_size=16)
        out, lse = nsa_kernels.block_selection_attention(
            q, k, v, index, block_size=16, plan=plan, return_lse=True
        )
        lists = (plan.entries, plan.places, plan.first, plan.count, plan.edges)
        backward = torch.ops.nsa_kernels.block_major_backward
        return out, *backward(q, k, v, out, lse, d_out.half(), *lists, 16, 0.25, 1 << 30)

    for far, near in zip(results(q), results(q.contiguous()), strict=True):
        assert torch.equal(far, near)


def test_packed_sequences_do_not_see_each_other() -> None:
    cu = torch.tensor([3, 40, 40, 97, 120], dtype=torch.int32, device=DEVICE)
    out, *_ = check(*draw(1, 130, 4, 2, 16, 16, 5, torch.float32), cu=cu)
    assert not out[0, :3].any()
    assert not out[0, 120:].any()


@settings(max_examples=15, deadline=None)
@given(
    length=st.integers(1, 90),
    group=st.integers(1, 5),
    heads=st.integers(1, 3),
    chosen=st.integers(1, 6),
    cuts=st.lists(st.integers(0, 90), max_size=3),
)
def test_any_shape(length, group, heads, chosen, cuts) -> None:
    edges = sorted({0, length, *(c for c in cuts if c < length)})
    cu = torch.tensor(edges, dtype=torch.int32, device=DEVICE)
    args = draw(1, length, group * heads, heads, 16, 16, chosen, torch.float32)
    check(*args, cu=cu)


def test_small_workspaces_take_several_chunks() -> None:
    args = draw(1, 200, 4, 2, 16, 16, 4, torch.float32)
    shape = block_config.BlockShape(200, 4, 2, 4, 16, 16, 16, torch.float32, args[0].device)
    cap = 120_000
    assert block_config.backward_workspace(shape, cap).chunk < 100
    assert block_config.forward_workspace(shape, cap).chunk < 200
    check(*args, workspace_bytes=cap)


def test_a_workspace_too_small_names_what_is_needed() -> None:
    q, k, v, _, index = draw(1, 64, 4, 2, 16, 16, 4, torch.float32)
    with pytest.raises(ValueError, match="need at least"):
        nsa_kernels.block_selection_attention(
            q.requires_grad_(), k, v, index, block_size=16, workspace_bytes=1000
        )


def test_two_runs_agree_bit_for_bit() -> None:
    args = draw(1, 130, 4, 1, 16, 16, 8, torch.float16)
    for a, b in zip(check(*args), check(*args), strict=True):
        assert torch.equal(a, b)


def test_many_queries_of_one_block_leave_through_the_spill(monkeypatch) -> None:
    config = block_config.BlockConfig(16, 16, 4, None)
    monkeypatch.setattr(
        "nsa_kernels.selection.blocks.operators.backward_config", lambda shape: config
    )
    args = draw(1, 150, 4, 2, 16, 16, 4, torch.float32)
    args[4][..., 0] = 0
    check(*args)


def test_plan_is_shared() -> None:
    q, k, v, d_out, index = draw(1, 100, 4, 2, 16, 16, 4, torch.float32)
    plan = nsa_kernels.plan_blocks(q, k, v, index, block_size=16)
    check(q, k, v, d_out, index, plan=plan)


def test_query_major_agrees(monkeypatch) -> None:
    q, k, v, _, index = draw(2, 50, 6, 2, 16, 24, 4, torch.float32)
    monkeypatch.setattr("nsa_kernels.selection.blocks.api.query_major_wins", lambda shape: True)
    cu = torch.tensor([0, 20, 45], dtype=torch.int32, device=DEVICE)
    for n, packed in ((2, None), (1, cu)):
        got = nsa_kernels.block_selection_attention(
            q[:n], k[:n], v[:n], index[:n], block_size=16, cu_seqlens=packed, return_lse=True
        )
        want = naive_blocks(
            q[:n].double(), k[:n].double(), v[:n].double(), index[:n], 16, 16**-0.5, packed
        )
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a.double(), b, atol=1e-5, rtol=1e-5)


def test_values_that_nobody_may_see_change_nothing() -> None:
    q, k, v, _, index = draw(1, 96, 4, 2, 16, 16, 4, torch.float32)
    q.requires_grad_()
    before = nsa_kernels.block_selection_attention(q, k, v, index, block_size=16)
    k2, v2 = k.clone(), v.clone()
    k2[:, 50:], v2[:, 50:] = 1e4, float("nan")
    after = nsa_kernels.block_selection_attention(q, k2, v2, index, block_size=16)
    # Blocks are read whole: what follows the query in its own block must still not count.
    assert torch.equal(before[:, :48], after[:, :48])


def test_gradcheck_in_float64() -> None:
    q, k, v, _, index = draw(1, 20, 2, 1, 16, 16, 2, torch.float64)
    for x in (q, k, v):
        x.requires_grad_()
    assert torch.autograd.gradcheck(
        lambda *x: nsa_kernels.block_selection_attention(*x, index, block_size=16), (q, k, v)
    )


def test_operators_are_what_torch_expects() -> None:
    q, k, v, _, index = draw(1, 40, 4, 2, 16, 16, 3, torch.float32)
    cu = torch.tensor([0, 30, 40], dtype=torch.int32, device=DEVICE)
    torch.library.opcheck(_plan, (index, cu, 16, 32))
    torch.library.opcheck(_query_major, (q, k, v, index, cu, 16, 0.25))
    lists = torch.ops.nsa_kernels.block_plan(index, cu, 16, 32)
    for x in (q, k, v):
        x.requires_grad_()
    torch.library.opcheck(_block_major, (q, k, v, *lists, 16, 0.25, 1 << 30))


def test_compiles_whole() -> None:
    q, k, v, d_out, index = draw(1, 40, 4, 2, 16, 16, 3, torch.float32)
    compiled = torch.compile(
        lambda *x: nsa_kernels.block_selection_attention(*x, index, block_size=16, return_lse=True),
        fullgraph=True,
        backend="aot_eager",
    )
    got = gradients(q, k, v, d_out, compiled)
    for a, b in zip(got, check(q, k, v, d_out, index), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"index": lambda x: x.long()}, "int32"),
        ({"q": lambda x: x[:, :, :3]}, "multiple"),
        ({"k": lambda x: x.half()}, "share one dtype"),
        ({"block_size": 48}, "block_size"),
        ({"sm_scale": -1.0}, "positive"),
    ],
)
def test_wrong_arguments_are_named(change, message) -> None:
    q, k, v, _, index = draw(1, 40, 4, 2, 16, 16, 3, torch.float32)
    tensors = {"q": q, "k": k, "v": v, "index": index}
    options = {"block_size": 16}
    for name, to in change.items():
        if name in tensors:
            tensors[name] = to(tensors[name])
        else:
            options[name] = to
    with pytest.raises((ValueError, TypeError), match=message):
        nsa_kernels.block_selection_attention(*tensors.values(), **options)


@pytest.mark.parametrize(
    "change",
    [
        {"block_size": 64},
        {"length": 70},
        {"chosen": 2},
        {"cu_seqlens": torch.tensor([0, 30, 96], dtype=torch.int32)},
        {"elsewhere": True},
    ],
)
def test_a_plan_of_another_call_is_refused(change) -> None:
    """It would attend to other keys than were chosen."""
    q, k, v, _, index = draw(1, 96, 4, 2, 16, 16, 3, torch.float32, 32)
    plan = nsa_kernels.plan_blocks(q, k, v, index, block_size=32)
    length = change.get("length", 96)
    tensors = [x[:, :length] for x in (q, k, v, index[..., : change.get("chosen", 3)])]
    cu = change.get("cu_seqlens")
    options = {
        "block_size": change.get("block_size", 32),
        "cu_seqlens": None if cu is None else cu.to(DEVICE),
    }
    other = plan
    if change.get("elsewhere"):
        other = dataclasses.replace(plan, places=plan.places.to("meta"))
    with pytest.raises(ValueError, match="plan_blocks of the same arguments"):
        nsa_kernels.block_selection_attention(*tensors, **options, plan=other)
    nsa_kernels.block_selection_attention(q, k, v, index, block_size=32, plan=plan)


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, v: (q, k.float(), v), TypeError, "share one dtype"),
        (lambda q, k, v: (q, k.repeat(1, 1, 1, 2), v), ValueError, "head dim"),
        (lambda q, k, v: (q[..., :8], k[..., :8], v), ValueError, "16..256"),
        (lambda q, k, v: (q, k, v.to("meta")), ValueError, "one device"),
    ],
)
def test_float64_is_checked_as_well(change, error, word) -> None:
    q, k, v, _, index = draw(1, 40, 4, 2, 16, 16, 3, torch.float64)
    with pytest.raises(error, match=word):
        nsa_kernels.block_selection_attention(*change(q, k, v), index, block_size=16)


SHARED = {  # D, Dv, block_size, rows: KiB that Triton 3.7.1 gives the backward for sm_89
    (192, 128, 64, 32): 108,
    (256, 256, 64, 16): 114,
    (256, 256, 32, 32): 82,
    (128, 128, 128, 32): 120,
    (128, 128, 64, 64): 88,
}


def shape_of(d: int, dv: int, block_size: int) -> block_config.BlockShape:
    half = torch.float16
    return block_config.BlockShape(4096, 16, 4, 4, d, dv, block_size, half, torch.device("cpu"))


@pytest.mark.parametrize("sizes", SHARED)
def test_shared_memory_of_the_backward_is_what_the_compiler_takes(sizes) -> None:
    *widths, rows = sizes
    assert block_config._backward_bytes(shape_of(*widths), rows) == SHARED[sizes] << 10


@pytest.mark.skipif(DEVICE == "cuda", reason="the CPU stands for a GPU of 99 KiB")
def test_tiles_that_fit_no_shared_memory_are_refused_before_the_forward() -> None:
    assert block_config.backward_config(shape_of(192, 128, 64)).rows == 16
    assert block_config.forward_config(shape_of(256, 256, 64)).rows == 32
    q, k, v, _, index = draw(1, 64, 2, 1, 256, 256, 1, torch.float16, 128)
    for grad, what in ((False, "forward"), (True, "backward")):
        with pytest.raises(ValueError, match=rf"{what} with D=256, Dv=256, block_size=128 .* 99"):
            nsa_kernels.block_selection_attention(
                q.requires_grad_(grad),
                k,
                v,
                index,
                block_size=128,
                plan=nsa_kernels.plan_blocks(q, k, v, index, block_size=128),
            )


def test_the_stride_of_an_axis_of_one_counts_for_nothing() -> None:
    """One token of several sequences, cut from more: contiguous, and refused as if it were not."""
    gen = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(3, 1, heads, 16, generator=gen).to(DEVICE) for heads in (4, 2, 2))
    index = torch.zeros(3, 1, 2, 2, dtype=torch.int32, device=DEVICE)
    want = nsa_kernels.block_selection_attention(q, k, v, index, block_size=16)
    longer = [torch.cat([x, x], 1)[:, :1] for x in (q, k, v, index)]
    odd = [x.as_strided(x.shape, (x.stride(0), 7, *x.stride()[2:])) for x in (q, k, v, index)]
    assert all(x.is_contiguous() for x in odd)
    for args in (longer, odd):
        leaves = [x.detach().requires_grad_() for x in args[:3]]
        out = nsa_kernels.block_selection_attention(*leaves, args[3], block_size=16)
        torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
        out.sum().backward()
        assert all(x.grad is not None for x in leaves)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [(0, 5), (2, 0), (0, 0)])
def test_an_empty_batch_is_attended_and_differentiated(size, dtype) -> None:
    q, k, v = (
        torch.zeros(*size, h, w, dtype=dtype, device=DEVICE) for h, w in ((4, 16), (2, 16), (2, 24))
    )
    leaves = [x.requires_grad_() for x in (q, k, v)]
    index = torch.zeros(*size, 2, 3, dtype=torch.int32, device=DEVICE)
    plan = nsa_kernels.plan_blocks(*leaves, index, block_size=16)
    for shared in (None, plan):
        out, lse = nsa_kernels.block_selection_attention(
            *leaves, index, block_size=16, plan=shared, return_lse=True
        )
        assert out.shape == (*size, 4, 24) and lse.shape == (*size, 4) and not lse.requires_grad
        for x, grad in zip(leaves, torch.autograd.grad(out.sum(), leaves), strict=True):
            assert grad.shape == x.shape
        with torch.no_grad():
            out = nsa_kernels.block_selection_attention(*leaves, index, block_size=16, plan=shared)
            assert out.shape == (*size, 4, 24)


class Stopped(torch.autograd.Function):
    """Passes no gradient on, not even zeros."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, _):
        return None


@pytest.mark.parametrize("traced", [False, True])
def test_a_gradient_that_does_not_come_is_none(traced: bool) -> None:
    q, k, v, _, index = draw(1, 20, 2, 1, 16, 16, 2, torch.float32)
    leaves = [x.requires_grad_() for x in (q, k, v)]
    if traced:
        lists = nsa_kernels.plan_blocks(q, k, v, index, block_size=16)
        of = (lists.entries, lists.places, lists.first, lists.count, lists.edges)
        out, _ = _block_major(*leaves, *of, 16, 0.25, 1 << 26)
    else:
        out = nsa_kernels.block_selection_attention(*leaves, index, block_size=16)
    (Stopped.apply(out).sum() + sum(x.sum() for x in leaves)).backward()
    assert all(bool((x.grad == 1).all()) for x in leaves)
