"""``nsa_attention``: packed sequences, gradients, what a compiler and a graph need."""

from __future__ import annotations

from functools import partial
from itertools import pairwise
from unittest import mock

import nsa_kernels
import pytest
import torch
from hypothesis import given as drawn
from hypothesis import settings
from hypothesis import strategies as st
from nsa_kernels.attention import launches, operator
from nsa_kernels.attention.naive import naive_nsa
from nsa_kernels.band.compressed import attend_compressed
from nsa_kernels.band.geometry import Band
from nsa_kernels.scoring.block_scores import ScoreTiles, block_scores
from nsa_kernels.selection.blocks import config
from torch.library import opcheck

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 20}


def inputs(t: int, b: int = 1, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed + t)
    q, k, v = (torch.randn(b, t, h, 16, generator=generator) * 1.5 for h in (4, 2, 2))
    gates = torch.rand(b, t, 4, 3, generator=generator)
    return [x.to(DEVICE).requires_grad_() for x in (q, k, v, gates)]


def exact(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor, **sizes: int
) -> torch.Tensor:
    """The paper's formula in float64."""
    sizes = sizes or SIZES
    block, stride = sizes["block"], sizes["stride"]
    q, k, v, gates = (x.double() for x in (q, k, v, gates))
    means = [
        x.unfold(1, block, stride).mean(-1) if x.shape[1] >= block else x[:, :0] for x in (k, v)
    ]
    return naive_nsa(q, k, v, *means, gates, **sizes)


LENGTHS = [33, 0, 5, 1, 70, 16]


def offsets(lengths: list[int]) -> torch.Tensor:
    return torch.tensor([0, *lengths], device=DEVICE).cumsum(0).int()


def agree(got: list[torch.Tensor], want: list[torch.Tensor]) -> None:
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a.double(), b.double(), atol=5e-5, rtol=5e-4)


def test_the_whole_and_its_gradients_are_those_of_the_paper() -> None:
    given = inputs(90, b=2)
    out, want = nsa_kernels.nsa_attention(*given, **SIZES), exact(*given)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    agree([out], [want])
    got = torch.autograd.grad(out, given, weight)
    agree(got, torch.autograd.grad(want, given, weight.double()))


def test_a_forward_without_gradients_gives_the_same() -> None:
    """It keeps nothing and writes the sum over the window's output; few tokens it plans not. The
    same operations, but a compiler may round a product and a sum of them once: on an H200 the two
    differed by 1e-6 at most, of 7."""
    for t in (90, 30):
        given = inputs(t)
        with torch.no_grad():
            out = nsa_kernels.nsa_attention(*given, **SIZES)
        want = nsa_kernels.nsa_attention(*given, **SIZES)
        if t == 90 and not out.is_cuda:
            assert torch.equal(out, want)
        agree([out], [want])


def test_two_runs_agree_to_the_bit() -> None:
    given = inputs(90)
    runs = []
    for _ in "ab":
        out = nsa_kernels.nsa_attention(*given, **SIZES)
        runs.append((out, *torch.autograd.grad(out.square().sum(), given)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


def test_chunks_and_spills_leave_the_bits_as_they_are(monkeypatch) -> None:
    """In chunks of 32 tokens and a key head at a time, all of which chose the first block, in work
    items of 16: sums in an order that timing decides would be seen here."""
    for of in (launches, operator):
        monkeypatch.setattr(of, "WORKSPACE_BYTES", 60_000)
    monkeypatch.setattr(config, "_backward_queries", lambda shape: 16)
    plans = mock.Mock(wraps=launches.build_plan)
    monkeypatch.setattr(launches, "build_plan", plans)
    given, runs = inputs(91), []
    for _ in "ab":
        out = nsa_kernels.nsa_attention(*given, **SIZES)
        runs.append((out, *torch.autograd.grad(out.square().sum(), given)))
    assert plans.call_args.args[3] == 32
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))
    want = exact(*given)
    agree(runs[0], [want, *torch.autograd.grad(want.square().sum(), given)])


def test_the_formula_passes_gradcheck() -> None:
    """The kernels know no float64; what they are held to does."""
    given = [x.detach().cpu().double().requires_grad_() for x in inputs(40)]
    assert torch.autograd.gradcheck(exact, given, fast_mode=True)


@settings(max_examples=4, deadline=None)
@drawn(
    stride=st.sampled_from([2, 4, 8]),
    strides=st.integers(1, 3),
    block_size=st.sampled_from([16, 32]),
    n_selected=st.integers(3, 6),
    window=st.integers(1, 40),
    group=st.integers(1, 3),
    lengths=st.lists(st.integers(0, 45), min_size=1, max_size=3).filter(any),
)
def test_any_sizes(stride, strides, block_size, n_selected, window, group, lengths) -> None:
    sizes = {
        "block": stride * strides,
        "stride": stride,
        "block_size": block_size,
        "n_selected": n_selected,
        "window": window,
    }
    t = sum(lengths)
    generator = torch.Generator().manual_seed(t)
    of = [(group, 16), (1, 16), (1, 24), (group, 3)]
    given = [torch.randn(1, t, *x, generator=generator).to(DEVICE).requires_grad_() for x in of]
    cu = offsets(lengths) if len(lengths) > 1 else None
    out = nsa_kernels.nsa_attention(*given, **sizes, cu_seqlens=cu)
    edges = [0, t] if cu is None else cu.tolist()
    parts = [exact(*(x[:, a:b] for x in given), **sizes) for a, b in pairwise(edges)]
    want = torch.cat(parts, 1)
    agree([out], [want])
    weight = torch.randn(out.shape, generator=generator).to(DEVICE)
    got = torch.autograd.grad(out, given, weight)
    agree(got, torch.autograd.grad(want, given, weight.double()))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_keep_their_precision_beside_16_bits(dtype) -> None:
    given = inputs(70)
    q, k, v = (x.detach().to(dtype).requires_grad_() for x in given[:3])
    out = nsa_kernels.nsa_attention(q, k, v, given[3], **SIZES)
    want = exact(q, k, v, given[3])
    near = {"atol": 3e-2, "rtol": 3e-2}
    torch.testing.assert_close(out.double(), want, **near)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    got = torch.autograd.grad(out, (q, k, v, given[3]), weight.to(dtype))
    exact_ = torch.autograd.grad(want, (q, k, v, given[3]), weight.to(dtype).double())
    for a, b in zip(got, exact_, strict=True):
        assert a.dtype == b.dtype
        assert (a.double() - b.double()).norm() <= 2e-2 * b.double().norm()


def test_the_operator_keeps_what_it_promises() -> None:
    q, k, v, gates = inputs(40)
    k_cmp, v_cmp = (x.detach()[:, ::4][:, :9].clone().requires_grad_() for x in (k, v))
    numbers = (8, 4, 16, 4, 20, 0.25)
    tensors = (q, k, v, k_cmp, v_cmp, gates)
    cu = offsets([25, 15])
    cu_keys = offsets([5, 2])
    opcheck(
        torch.ops.nsa_kernels.attend_whole_kept.default,
        (*tensors, cu, cu_keys, *numbers),
        test_utils=("test_schema", "test_autograd_registration", "test_faketensor"),
    )
    for op in (torch.ops.nsa_kernels.attend_whole, torch.ops.nsa_kernels.attend_whole_kept):
        if op is torch.ops.nsa_kernels.attend_whole:
            tensors_of_op = tuple(x.detach() for x in tensors)
        else:
            tensors_of_op = tensors
        opcheck(op.default, (*tensors_of_op, None, None, *numbers))


@pytest.mark.parametrize("tail", [0, 9])
def test_packed_sequences_are_each_on_its_own(tail) -> None:
    cu = offsets(LENGTHS)
    given = inputs(sum(LENGTHS) + tail)
    out = nsa_kernels.nsa_attention(*given, **SIZES, cu_seqlens=cu)
    alone = [exact(*(x[:, a:b] for x in given)) for a, b in pairwise(cu.tolist())]
    behind = out.new_zeros((1, tail, *out.shape[2:]))
    want = torch.cat([*alone, behind], 1)
    agree([out], [want])
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    got = torch.autograd.grad(out, given, weight)
    agree(got, torch.autograd.grad(want, given, weight.double()))


def test_packed_sequences_are_one_graph_without_a_read_on_the_host() -> None:
    """A read of cu_seqlens would end the graph, as it would end a capture."""
    torch._dynamo.reset()
    given, cu = inputs(60), offsets([25, 35])
    call = partial(nsa_kernels.nsa_attention, **SIZES)
    compiled = torch.compile(call, fullgraph=True, backend="aot_eager")
    out, want = compiled(*given, cu_seqlens=cu), call(*given, cu_seqlens=cu)
    assert torch.equal(out, want)
    got = torch.autograd.grad(out.sum(), given)
    agree(got, torch.autograd.grad(want.sum(), given))


def scored(t: int, block: int, stride: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q, k, *_ = (x.detach() for x in inputs(t))
    k_cmp = k.unfold(1, block, stride).mean(-1) if t >= block else k[:, :0]
    _, lse = attend_compressed(q, k_cmp, k_cmp, None, None, block, stride, 0.25)
    return q, k_cmp, lse


@pytest.mark.parametrize(
    ("block", "stride", "block_size", "keys"),
    [(8, 4, 16, 32), (32, 4, 16, 32), (8, 2, 64, 16), (64, 2, 16, 16), (4, 4, 16, 16)],
)
def test_tiles_of_scores_do_not_show(block, stride, block_size, keys) -> None:
    """Blocks that begin in the middle of a tile, and blocks whose keys fill more than one."""
    of = scored(150, block, stride)
    band = Band(block, stride, 0)
    whole = block_scores(*of, band, block_size, 0.25)
    small = block_scores(*of, band, block_size, 0.25, tiles=ScoreTiles(16, keys, 4, 1))
    torch.testing.assert_close(small, whole, atol=1e-6, rtol=1e-5)
    seen = block_scores(*of, band, block_size, 0.25, visible=True)
    blocks = torch.arange(whole.shape[3], device=DEVICE)
    visible = blocks[None, :] <= torch.arange(150, device=DEVICE)[:, None] // block_size
    assert torch.equal(seen[0, :, 0][visible], whole[0, :, 0][visible])
    assert not whole[0, :, 0][~visible].any()


def test_scores_of_packed_sequences_are_those_of_each_alone() -> None:
    cu = offsets(LENGTHS)
    parts = [scored(n, 8, 4) if n else None for n in LENGTHS]
    some = [x for x in parts if x]
    q, k = (torch.cat([x[i] for x in some], 1) for i in (0, 1))
    lse = torch.cat([x[2] for x in some], 2)
    keys = offsets([x[1].shape[1] if x else 0 for x in parts])
    band = Band(8, 4, 0)
    got = block_scores(q, k, lse, band, 16, 0.25, cu, keys)
    for (a, b), part in zip(pairwise(cu.tolist()), parts, strict=True):
        if part:
            want = block_scores(*part, band, 16, 0.25)
            torch.testing.assert_close(got[:, a:b, :, : want.shape[3]], want, atol=1e-6, rtol=1e-5)
            assert not got[:, a:b, :, want.shape[3] :].any()


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
    leaves = inputs(20)
    q, k, v, gates = leaves
    if traced:
        out = operator._kept(q, k, v, k[:, :4], v[:, :4], gates, None, None, 8, 4, 16, 4, 20, 0.25)
        out = out[0]
    else:
        out = nsa_kernels.nsa_attention(*leaves, **SIZES)
    (Stopped.apply(out).sum() + sum(x.sum() for x in leaves)).backward()
    assert all(bool((x.grad == 1).all()) for x in leaves)


def test_no_more_blocks_are_selected_than_a_context_has() -> None:
    sizes = {**SIZES, "n_selected": 1 << 30}
    with pytest.raises(ValueError, match="nsa_attention: n_selected must be at most 65536"):
        nsa_kernels.nsa_attention(*inputs(20), **sizes)
