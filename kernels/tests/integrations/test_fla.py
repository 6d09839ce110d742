"""``parallel_nsa``, with flash-linear-attention's argument names, against its definition in float64
and, if fla-core is installed, against fla-core's reference."""

import inspect
from itertools import pairwise

import pytest
import torch
from cases import DEVICE, complete_mask, mean, window_mask
from nsa_kernels.band.naive import attend
from nsa_kernels.integrations.fla import parallel_nsa
from nsa_kernels.scoring.naive import naive_block_scores, naive_select_blocks
from nsa_kernels.selection.blocks.naive import naive_blocks

SIZE = 16
NEAR = {"atol": 5e-5, "rtol": 5e-4}


def draw(t, b=1, heads=4):
    generator = torch.Generator().manual_seed(t)
    q, k, v = (torch.randn(b, t, h, 16, generator=generator) for h in (heads, 2, 2))
    gates = torch.rand(3, b, t, heads, generator=generator)
    given = {"q": q, "k": k, "v": v, "g_cmp": gates[0], "g_slc": gates[1], "g_swa": gates[2]}
    return {name: x.to(DEVICE) for name, x in given.items()}


def blocks(t, slots=2):
    """Draw int64 [1, T, 2, slots]: for each query, different blocks up to its own, or -1."""
    generator = torch.Generator().manual_seed(t)
    keys = torch.rand(1, t, 2, -(-t // SIZE), generator=generator)
    own = (torch.arange(t) // SIZE)[:, None, None]
    chosen = keys.argsort(-1)[..., :slots]
    return torch.where(chosen > own, -1, chosen).to(DEVICE)


def of_one(given, slots, counts, window, scale):
    """Compute [1, T, HQ, Dv] of one sequence from float64 tensors [1, T, ...]. ``slots``, the
    chosen blocks, is [1, T, H, S] or None; ``counts`` is a number or [1, T, H]."""
    q, k, v = (given[name] for name in "qkv")
    t, sizes = q.shape[1], {"block": SIZE, "stride": SIZE}
    k_cmp, v_cmp = (mean(x, **sizes) for x in (k, v))
    most = counts if isinstance(counts, int) else int(counts.max())
    if slots is None:
        scores = naive_block_scores(q, k_cmp, **sizes, block_size=SIZE, sm_scale=scale)
        slots = naive_select_blocks(scores.detach(), most, block_size=SIZE)
    if not isinstance(counts, int):
        places = torch.arange(slots.shape[3], device=DEVICE)
        slots = torch.where(places < counts.unsqueeze(-1), slots, -1)
    total = naive_blocks(q, k, v, slots, SIZE, scale)[0]
    if "g_slc" in given:
        total = total * given["g_slc"].unsqueeze(-1)
    if "g_cmp" in given:
        far = attend(q, k_cmp, v_cmp, complete_mask([t], **sizes), scale)[0]
        total = total + far * given["g_cmp"].unsqueeze(-1)
    if window:
        near = attend(q, k, v, window_mask([t], window), scale)[0]
        total = total + near * given["g_swa"].unsqueeze(-1)
    return total


def definition(given, **says):
    """Compute ``parallel_nsa`` in float64, one row of the batch and one sequence at a time."""
    b, t = given["q"].shape[:2]
    window, counts = says.get("window_size", 0), says.get("block_counts", 16)
    slots, cu = says.get("block_indices"), says.get("cu_seqlens")
    edges = [0, t] if cu is None else cu.unique().tolist()  # empty sequences give nothing
    rows = []
    for row in range(b):
        parts = []
        for begin, end in pairwise(edges):
            here = slice(row, row + 1), slice(begin, end)
            mine = {name: x[here].double() for name, x in given.items()}
            of_counts = counts if isinstance(counts, int) else counts[here]
            of_slots = None if slots is None else slots[here]
            parts.append(of_one(mine, of_slots, of_counts, window, says.get("scale") or 0.25))
        rows.append(torch.cat(parts, 1))
    return torch.cat(rows)


def counts_of(t, least, most):
    generator = torch.Generator().manual_seed(t)
    return torch.randint(least, most + 1, (1, t, 2), generator=generator).to(DEVICE)


CU = torch.tensor([0, 3, 3, 72], device=DEVICE)
WHOLE = {"block_counts": 4, "window_size": 12}
CASES = {
    "the whole": (72, (), WHOLE),
    "the whole, packed, another scale": (72, (), {**WHOLE, "cu_seqlens": CU, "scale": 0.4}),
    "chosen, no window, selection ungated": (24, ("g_slc", "g_swa"), {"block_counts": 3}),
    "counts of each query": (72, (), {"block_counts": counts_of(72, 0, 5), "window_size": 12}),
    "counts, packed": (72, (), {"block_counts": counts_of(72, 1, 4), "cu_seqlens": CU}),
    "given blocks alone": (34, ("g_cmp", "g_slc", "g_swa"), {"block_indices": blocks(34)}),
    "given blocks, gated, and a window": (
        34,
        ("g_cmp",),
        {"block_indices": blocks(34), "window_size": 8},
    ),
    "given blocks beside compression, counts": (
        34,
        ("g_swa",),
        {"block_indices": blocks(34, 3), "block_counts": counts_of(34, 0, 3)},
    ),
}


@pytest.mark.parametrize("name", list(CASES))
def test_it_is_the_definition(name):
    t, without, says = CASES[name]
    given = {key: x for key, x in draw(t).items() if key not in without}
    got = parallel_nsa(**given, block_size=SIZE, **says)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.double(), definition(given, **says), **NEAR)


@pytest.mark.parametrize("given_blocks", [False, True])
def test_gradients_are_those_of_the_definition(given_blocks):
    says = {"block_counts": 3, "window_size": 8}
    if given_blocks:
        says = {"block_indices": blocks(24), "window_size": 8}
    given = {name: x.requires_grad_() for name, x in draw(24).items()}
    leaves = list(given.values())
    weight = torch.randn(1, 24, 4, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    got = torch.autograd.grad(parallel_nsa(**given, block_size=SIZE, **says), leaves, weight)
    exact = torch.autograd.grad(definition(given, **says), leaves, weight.double())
    for key, a, b in zip(given, got, exact, strict=True):
        torch.testing.assert_close(a, b, **NEAR, msg=lambda m, n=key: f"{n}: {m}")


def test_16_bits_keep_their_dtype_beside_other_gates():
    given, says = draw(20), {"block_indices": blocks(20)}
    given.update({name: given[name].bfloat16() for name in ("q", "k", "v", "g_slc")})
    got = parallel_nsa(**given, block_size=SIZE, **says)
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got.double(), definition(given, **says), atol=2e-2, rtol=2e-2)


def test_indices_beyond_32_bits_select_nothing():
    """As int32, -(2**63) and 2**32 would be block 0."""
    q, k, v = (draw(17)[name] for name in "qkv")
    far = torch.tensor([-(2**63), 2**63 - 1, 2**32], device=DEVICE).expand(1, 17, 2, 3)
    out = parallel_nsa(q, k, v, block_indices=far, block_size=SIZE)
    assert out.equal(torch.zeros_like(out))


@pytest.mark.parametrize("says", [{}, {"block_indices": blocks(8)}, {"block_counts": "tensor"}])
def test_an_empty_batch_goes_through_both_ways(says):
    for b, t in ((0, 8), (1, 0)):
        given = {name: x[:b, :t].clone().requires_grad_() for name, x in draw(8).items()}
        rows = {"block_counts": counts_of(8, 1, 3)} if "block_counts" in says else says
        cut = {name: x[:b, :t] for name, x in rows.items()}
        out = parallel_nsa(**given, block_size=SIZE, window_size=4, **cut)
        assert out.shape == (b, t, 4, 16)
        out.sum().backward()
        assert all(x.grad.shape == x.shape for x in given.values())


@pytest.mark.parametrize(
    ("says", "error", "word"),
    [
        ({"g_cmp": None}, ValueError, "give block_indices, or g_cmp"),
        ({"g_swa": None, "window_size": 4}, ValueError, "a window_size of 4 needs g_swa"),
        ({"window_size": 2.5}, ValueError, "window_size must be a whole number of at least 0"),
        ({"block_size": 24}, ValueError, "block_size must be one of"),
        ({"block_counts": 2}, ValueError, "block_counts must be a whole number of at least 3"),
        ({"block_counts": torch.ones(1, 6, 2)}, TypeError, "block_counts must be int64 or int32"),
        ({"block_indices": torch.ones(1, 6, 2, 1)}, TypeError, "block_indices must be int64"),
        ({"g_cmp": torch.ones(1, 6, 2)}, ValueError, r"expected g_cmp \[1, 6, 4\]"),
        ({"g_slc": torch.ones(1, 6, 4).long()}, TypeError, "g_slc must be a floating"),
        ({"q": torch.ones(1, 1, 4, 16)}, ValueError, "one query for each key, .*decode_step"),
        ({"q": torch.ones(1, 6, 3, 16)}, ValueError, "HQ a multiple of H"),
        ({"cu_seqlens": torch.tensor([0.0, 6.0])}, TypeError, "cu_seqlens must be int64"),
        ({"cu_seqlens": torch.tensor([6])}, ValueError, r"cu_seqlens must be \[sequences \+ 1\]"),
        (
            {"cu_seqlens": (torch.tensor([0, 6]), torch.tensor([0, 9]))},
            ValueError,
            "cu_seqlens of queries and of keys must be one tensor",
        ),
    ],
)
def test_what_does_not_fit_is_refused_by_one_sentence(says, error, word):
    moved = {k: x.to(DEVICE) if isinstance(x, torch.Tensor) else x for k, x in says.items()}
    with pytest.raises(error, match=f"^parallel_nsa: .*{word}"):
        parallel_nsa(**{**draw(6), "block_size": SIZE, **moved})


def theirs():
    """Return fla-core's reference, or skip the test. Importing the reference warns of a missing
    GPU."""
    pytest.importorskip("einops", reason="needs fla-core and einops")
    return pytest.importorskip("fla.ops.nsa.naive", reason="needs fla-core and einops")


def test_the_signature_is_fla_cores():
    theirs()
    parallel = pytest.importorskip("fla.ops.nsa.parallel", reason="needs fla-core")
    want = inspect.signature(parallel.parallel_nsa).parameters
    got = inspect.signature(parallel_nsa).parameters
    assert [(p.name, p.default) for p in got.values()] == [
        (p.name, p.default) for p in want.values()
    ]


def test_it_is_what_fla_cores_reference_gives():
    """The reference needs groups of at least 16 heads, and takes the means as arguments."""
    naive = theirs()
    given = draw(70, heads=32)
    q, k, v, gates = given["q"], given["k"], given["v"], (given["g_cmp"], given["g_slc"])
    k_cmp, v_cmp = (x[:, :64].unflatten(1, (4, SIZE)).mean(2) for x in (k, v))
    last = (x[:, 64:].mean(1, keepdim=True) for x in (k, v))
    k_cmp, v_cmp = (torch.cat(pair, 1) for pair in zip((k_cmp, v_cmp), last, strict=True))
    far, _ = naive.naive_nsa_compression(q, k_cmp, v_cmp, SIZE, 0.25)
    slots = naive.naive_nsa_topk(q, k_cmp, 4, SIZE, 0.25)
    chosen = naive.naive_nsa_selection(q, k, v, slots, SIZE)
    want = chosen * gates[1].unsqueeze(-1) + far * gates[0].unsqueeze(-1)
    got = parallel_nsa(q, k, v, *gates, block_counts=4, block_size=SIZE)
    torch.testing.assert_close(got, want, **NEAR)
    got = parallel_nsa(q, k, v, block_indices=slots, block_size=SIZE)
    torch.testing.assert_close(got, chosen, **NEAR)


def test_more_blocks_than_there_are_is_all_of_them():
    given = draw(20, heads=2)
    every = parallel_nsa(**given, block_size=SIZE, block_counts=3)
    assert every.equal(parallel_nsa(**given, block_size=SIZE, block_counts=1 << 30))


@pytest.mark.parametrize("offsets", ["a pair", "strided"])
def test_offsets_may_be_a_pair_or_strided(offsets):
    says = {"block_size": SIZE, "block_indices": blocks(20)}
    given = {name: x for name, x in draw(20).items() if name in ("q", "k", "v")}
    cu = torch.tensor([0, 99, 5, 99, 20, 99], dtype=torch.int32, device=DEVICE)[::2]
    want = parallel_nsa(**given, **says, cu_seqlens=cu.clone())
    other = cu if offsets == "strided" else (cu.clone(),) * 2
    assert parallel_nsa(**given, **says, cu_seqlens=other).equal(want)
