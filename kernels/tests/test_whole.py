"""``nsa_attention``: gates of another dtype, a small workspace, tiles of scores, and chunks."""

from itertools import accumulate, pairwise
from unittest import mock

import nsa_kernels
import pytest
import torch
from cases import (
    DEVICE,
    Sizes,
    agree,
    check_gradients,
    exact_nsa,
    ints,
    make,
    normal,
)
from nsa_kernels.attention import launches, operator
from nsa_kernels.band.attend import attend as attend_band
from nsa_kernels.band.geometry import Band
from nsa_kernels.scoring.block_scores import ScoreTiles, block_scores
from nsa_kernels.selection.blocks import config

SIZES = Sizes(block=8, stride=4, n_selected=3, window=20).whole
NAME = "nsa_attention"


def inputs(t, b=1):
    draw = normal(seed=t)
    return draw(b, t, 4, 16), draw(b, t, 2, 16), draw(b, t, 2, 16), draw(b, t, 4, 3)


def attend(q, *others, **more):
    return nsa_kernels.nsa_attention(q, *others, **more, **SIZES)


def close(got, want):
    torch.testing.assert_close(got.double(), want.double(), atol=5e-5, rtol=5e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_gates_keep_their_precision_beside_16_bits(dtype):
    case = make(NAME, t=70, hq=4, h=2, dtype=dtype, **SIZES)
    case.tensors["gates"] = case.tensors["gates"].float()
    exact = {key: x.double().requires_grad_() for key, x in case.tensors.items()}
    leaves = [x.requires_grad_() for x in case.tensors.values()]
    out, want = case.call(**case.tensors), case.formula(**exact)
    weight = torch.randn(out.shape, device=DEVICE).to(dtype)
    got = torch.autograd.grad(out, leaves, weight)
    wanted = torch.autograd.grad(want, [*exact.values()], weight.double())
    check_gradients(got[:3], wanted[:3], dtype)
    assert got[3].dtype == torch.float32
    assert (got[3] - wanted[3]).norm() <= 1e-2 * wanted[3].norm()


def test_chunks_and_spills_leave_the_bits_as_they_are(monkeypatch):
    """Chunks have 32 tokens and one key head. A work item has 16 queries of a block, and all
    queries chose the first block. Sums whose order depends on timing would differ."""
    for module in (launches, operator):
        monkeypatch.setattr(module, "WORKSPACE_BYTES", 60_000)
    monkeypatch.setattr(config, "_backward_queries", lambda shape: 16)
    plans = mock.Mock(wraps=launches.build_plan)
    monkeypatch.setattr(launches, "build_plan", plans)
    case = make(NAME, t=75, hq=4, h=2, **SIZES)
    agree(NAME, case)
    assert plans.call_args.args[3] == 32
    leaves = [x.requires_grad_() for x in case.tensors.values()]
    runs = []
    for _ in "ab":
        out = case.call(**case.tensors)
        runs.append((out, *torch.autograd.grad(out.square().sum(), leaves)))
    assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))


@pytest.mark.parametrize(
    ("block", "stride", "block_size", "keys"),
    [(8, 2, 64, 16), (64, 2, 16, 16), (4, 4, 16, 16)],
)
def test_tiles_of_scores_do_not_show(block, stride, block_size, keys):
    """Blocks begin in the middle of a tile, or their keys fill more than one tile."""
    q, k_cmp, v_cmp = make(
        "compressed_attention", t=100, hq=4, h=2, block=block, stride=stride
    ).tensors.values()
    _, lse = attend_band(q, k_cmp, v_cmp, None, None, block, stride, 0, 0.25)
    given = q, k_cmp, lse, Band(block, stride, 0), block_size, 0.25
    whole = block_scores(*given)
    small = block_scores(*given, tiles=ScoreTiles(16, keys, 4, 1))
    torch.testing.assert_close(small, whole, atol=1e-6, rtol=1e-5)
    blocks = torch.arange(whole.shape[3], device=DEVICE)
    visible = blocks[None, :] <= torch.arange(100, device=DEVICE)[:, None] // block_size
    seen = block_scores(*given, visible=True)
    assert torch.equal(seen[0, :, 0][visible], whole[0, :, 0][visible])
    assert not whole[0, :, 0][~visible].any()


def test_a_prefill_in_chunks_is_the_prefill_in_one():
    """Chunks end before the first compressed key, after one query, and one token into a block."""
    q, k, v, gates = inputs(60, b=2)
    chunks = [
        attend(q[:, begin:end], k[:, :end], v[:, :end], gates[:, begin:end])
        for begin, end in pairwise([0, 5, 6, 33, 60])
    ]
    close(torch.cat(chunks, 1), exact_nsa(q, k, v, gates, **SIZES))


def chunks_of(lengths, tail=0):
    """Return packed sequences of so many queries and tokens, and their offsets."""
    queries, tokens = zip(*lengths, strict=True)
    q, _, _, gates = inputs(sum(queries) + tail)
    _, k, v, _ = inputs(sum(tokens))
    edges = (ints(0, *accumulate(x)) for x in (queries, tokens))
    return (q, k, v, gates), dict(zip(("cu_seqlens", "cu_seqlens_k"), edges, strict=True))


def test_packed_chunks_are_each_alone():
    (q, k, v, gates), offsets = chunks_of([(5, 5), (3, 40), (0, 21), (1, 1), (7, 48), (2, 8)], 3)
    got = attend(q, k, v, gates, **offsets)
    sequences = zip(*(pairwise(x.tolist()) for x in offsets.values()), strict=True)
    for (a, b), (first, end) in sequences:
        mine = q[:, a:b], k[:, first:end], v[:, first:end], gates[:, a:b]
        if b > a:
            close(got[:, a:b], exact_nsa(*mine, **SIZES))
    assert not got[:, -3:].any()


def test_packed_sequences_of_as_many_queries_as_keys_are_what_they_are_without():
    given, cu = inputs(40), ints(0, 23, 23, 40)
    close(attend(*given, cu_seqlens=cu, cu_seqlens_k=cu.clone()), attend(*given, cu_seqlens=cu))


@pytest.mark.parametrize("tokens", [7, 0])
def test_queries_before_the_first_token_see_nothing(tokens):
    """The last query of a sequence has the position of its last key."""
    (q, k, v, gates), offsets = chunks_of([(12, tokens)])
    got, before = attend(q, k, v, gates, **offsets), 12 - tokens
    assert not got[:, :before].any()
    if tokens:
        close(got[:, before:], exact_nsa(q[:, before:], k, v, gates[:, before:], **SIZES))
