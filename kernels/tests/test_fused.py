"""Kernels bound by memory: gated sum, means of blocks, and the choice of blocks."""

import nsa_kernels
import pytest
import torch
from cases import DEVICE, HERE, agree, make, mean, normal, offsets
from nsa_kernels.attention.means import key_offsets, keys_of, launch_means, means_of_blocks
from nsa_kernels.scoring.naive import naive_select_blocks
from nsa_kernels.scoring.top_n import RowTiles, launch_top_n
from nsa_kernels.selection.blocks.plan import build_plan

ROUNDED = {torch.float16: 1e-3, torch.bfloat16: 8e-3, torch.float32: 2e-6}


def draw(*shape, dtype=torch.float32, seed=0):
    return normal(dtype, seed + sum(shape))(*shape)


@pytest.mark.parametrize("dtype", HERE)
@pytest.mark.parametrize("gates", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("sizes", [{"t": 1}, {"b": 2, "t": 21, "d": 48}, {"t": 9, "d": 256}])
def test_a_gated_sum_with_gates_of_any_dtype(dtype, gates, sizes):
    case = make("gated_sum", **sizes, dtype=dtype)
    case.tensors["gates"] = case.tensors["gates"].to(gates)
    agree("gated_sum", case, dtype)


@pytest.mark.parametrize("dtype", HERE)
@pytest.mark.parametrize(("block", "stride"), [(32, 16), (8, 4), (4, 4), (12, 3), (3, 5), (1, 1)])
def test_means_and_their_gradients(dtype, block, stride):
    k = draw(2, 70, 2, 24, dtype=dtype).requires_grad_()
    v = draw(2, 2, 70, 40, dtype=dtype).transpose(1, 2).requires_grad_()
    results = means_of_blocks(k, v, block, stride)
    want = mean(k.double(), block, stride), mean(v.double(), block, stride)
    for a, b in zip(results, want, strict=True):
        assert a.dtype == dtype
        torch.testing.assert_close(a.double(), b, atol=ROUNDED[dtype], rtol=ROUNDED[dtype])
    weights = [draw(*x.shape, dtype=dtype, seed=5) for x in results]
    got = torch.autograd.grad(results, (k, v), weights)
    exact = torch.autograd.grad(want, (k, v), [x.double() for x in weights])
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b, atol=ROUNDED[dtype], rtol=2 * ROUNDED[dtype])


def test_the_module_of_the_mean_is_the_same():
    from nsa_kernels.attention.compression import MeanCompression

    x = draw(1, 21, 2, 16)
    compress = MeanCompression(8, 4)
    assert torch.equal(compress(x), means_of_blocks(x, x, 8, 4)[0])
    assert compress(x[:, :7]).shape == (1, 0, 2, 16)
    double = x.double().requires_grad_()
    assert torch.autograd.gradcheck(compress, double)
    torch.testing.assert_close(compress(x), compress(double).float(), atol=1e-6, rtol=1e-6)


LENGTHS = [7, 0, 8, 40, 3, 12]


@pytest.mark.parametrize(("block", "stride"), [(8, 4), (4, 4)])
def test_means_of_packed_sequences_stay_in_their_sequence(block, stride):
    cu = offsets(LENGTHS)
    total = int(cu[-1])
    k = draw(1, total + 9, 2, 16).requires_grad_()
    v = draw(1, total + 9, 2, 32).requires_grad_()
    of_keys = key_offsets(cu, k.shape[1], block, stride)
    each = [keys_of(n, block, stride, False) for n in LENGTHS]
    assert of_keys.tolist() == torch.tensor([0, *each]).cumsum(0).tolist()
    results = means_of_blocks(k, v, block, stride, cu, of_keys)
    keys = int(of_keys[-1])
    assert results[0].shape[1] == (total + 9) // stride >= keys
    edges = list(zip(cu.tolist(), cu.tolist()[1:], strict=False))
    want = [
        torch.cat([mean(x[:, a:b].double(), block, stride) for a, b in edges], 1) for x in (k, v)
    ]
    weights = [draw(*x.shape, seed=5) for x in results]
    for a, b in zip(results, want, strict=True):
        torch.testing.assert_close(a[:, :keys].double(), b.double(), atol=1e-6, rtol=1e-6)
        assert not a[:, keys:].any()
    got = torch.autograd.grad(results, (k, v), weights)
    exact = torch.autograd.grad(want, (k, v), [x[:, :keys].double() for x in weights])
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-6)
        assert not a[:, total:].any()


def test_a_mean_does_not_depend_on_where_its_program_begins():
    k, v = draw(1, 90, 1, 16), draw(1, 90, 1, 16)
    whole = launch_means(k, v, 8, 4, None, None)
    shifted = launch_means(k[:, 20:], v[:, 20:], 8, 4, None, None)
    assert all(torch.equal(a[:, 5:], b) for a, b in zip(whole, shifted, strict=True))


KINDS = ["few values", "hostile", *(["any", "all equal"] if DEVICE == "cuda" else [])]


def choose_blocks(of, count, block_size, cu_seqlens=None):
    return launch_top_n(of, count, block_size, 0, spans=False, cu_seqlens=cu_seqlens)


def scores(kind, t, blocks):
    x = draw(1, t, 2, blocks).exp()
    if kind == "few values":  # ties in and between `RowTiles` groups, at the last place
        x = (x * 2).round() / 2
    elif kind == "hostile":
        x[..., ::3] = float("nan")
        x[..., 1::7] = float("inf")
        x[..., 2::5] *= -1
    elif kind == "all equal":
        x = torch.ones_like(x)
    return x


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("first", "t", "count", "tiles"),
    [
        (0, 40, 5, RowTiles(32, 1, 1)),
        (0, 40, 5, RowTiles(32, 3, 1)),
        (0, 40, 24, RowTiles(4, 4, 1)),
        (370, 5, 16, RowTiles(8, 2, 2)),
        (640, 3, 9, RowTiles(64, 1, 1)),
        (700, 4, 40, RowTiles(32, 1, 1)),
        # As many groups as a group has scores.
        (100, 4, 13, RowTiles(4, 2, 1)),
        (4600, 3, 20, RowTiles(32, 2, 1)),
    ],
)
def test_chosen_blocks_are_those_of_a_stable_sort(kind, first, t, count, tiles):
    blocks = (first + t + 7) // 8
    given = scores(kind, t, blocks)
    want = naive_select_blocks(given, count, block_size=8, first_position=first)
    want = torch.nn.functional.pad(want, (0, count - want.shape[-1]), value=-1)
    got = launch_top_n(given, count, 8, first, spans=False, tiles=tiles)
    assert torch.equal(got.long(), want)
    spans = launch_top_n(given, count, 8, first, tiles=tiles)
    position = first + torch.arange(t, device=DEVICE)[:, None, None]
    ends = torch.minimum(want * 8 + 8, position + 1)
    assert torch.equal(spans[..., 0].long(), torch.where(want >= 0, want * 8, 0))
    assert torch.equal(spans[..., 1].long(), torch.where(want >= 0, ends, 0))


@pytest.mark.parametrize("local", [0, 1, 5])
def test_blocks_with_another_number_of_last_ones(local):
    given = scores("few values", 60, 16)
    got = nsa_kernels.select_blocks(given, 7, block_size=4, local=local)
    want = naive_select_blocks(given, 7, block_size=4, local=local)
    assert torch.equal(torch.where(got[..., 1] > 0, got[..., 0] // 4, -1).long(), want)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("packed", [False, True])
def test_a_plan_of_what_a_top_n_chose_needs_no_look_for_repetitions(kind, packed):
    given = scores(kind, 70, 9)
    cu = torch.tensor([0, 5, 40, 66], dtype=torch.int32, device=DEVICE) if packed else None
    chosen = choose_blocks(given, 7, 8, cu)
    looked, not_looked = (
        build_plan(chosen, cu, 8, 32, cleared=True, unique=unique) for unique in (False, True)
    )
    for name in ("entries", "places", "first", "count", "edges"):
        assert torch.equal(getattr(looked, name), getattr(not_looked, name)), name
    assert looked.count.sum() > 0


def test_blocks_of_packed_sequences_are_those_of_each_alone():
    cu = offsets(LENGTHS)
    total = int(cu[-1])
    given = draw(1, total + 5, 2, 16).exp()
    got = choose_blocks(given, 4, 4, cu)
    assert (got[:, total:] == -1).all()
    for a, b in zip(cu.tolist(), cu.tolist()[1:], strict=False):
        assert torch.equal(got[:, a:b], choose_blocks(given[:, a:b].contiguous(), 4, 4))
