"""Decoding: steps against the formula, lengths of entries, pages of caches, and chosen blocks."""

import nsa_kernels
import pytest
import torch
from cases import (
    DEVICE,
    HERE,
    Sizes,
    agree,
    exact_scores,
    ints,
    make,
    normal,
    paged,
)
from nsa_kernels.attention.decode.compressed import compressed_config
from nsa_kernels.attention.decode.step import spans_config
from nsa_kernels.launch import device as limits
from nsa_kernels.scoring.naive import naive_select_blocks
from nsa_kernels.selection.ranges.config import ranges_config
from nsa_kernels.selection.rows.config import rows_config
from nsa_kernels.selection.rows.naive import naive_rows

LENGTHS = (0, 1, 31, 32, 64, 65, 203, 900)
"""Nothing, one token, fewer than a compressed key, at and behind the edge of a block, all there is
room for, and more."""
PAPER = {"block": 32, "stride": 16, "block_size": 64}


@pytest.fixture
def _many_processors(monkeypatch):
    """Few rows leave most of 132 multiprocessors idle, so rows are split."""
    rules = (limits.device_limits, rows_config, ranges_config, spans_config, compressed_config)
    monkeypatch.setattr(limits, "CPU_LIMITS", limits.Device(processors=132, shared_bytes=99 * 1024))
    for rule in rules:
        rule.cache_clear()
    yield
    for rule in rules:
        rule.cache_clear()


def step(sizes, **more):
    """Return the name and the case of a step. Its caches are parts of longer ones."""
    sizes = {**PAPER, "d": 32, "dv": 32, **sizes, **more}
    name = "decode_step with cache_seqlens" if "lengths" in sizes else "decode_step"
    case = make(name, **sizes)
    for key in case.keys:
        x = case.tensors[key]
        case.tensors[key] = torch.cat([x, x], 2)[:, :, : x.shape[2]]
    return name, case


STEPS = [
    {"b": 2, "hq": 6, "h": 2, "t": 203, "block_size": 16, "n_selected": 5, "window": 40},
    {"hq": 3, "t": 6500, "block_size": 16, "n_selected": 25, "window": 300},
    {"hq": 3, "t": 4200, "block_size": 16, "n_selected": 5, "window": 700},
    {"hq": 40, "h": 2, "t": 3000, "block_size": 16, "n_selected": 5, "window": 40},
    {"b": 2, "hq": 6, "h": 2, "t": 1500, "n_selected": 5, "window": 40},
    {"b": 2, "hq": 6, "h": 2, "t": 1500, "block": 48, "block_size": 48, "n_selected": 5},
    {"hq": 5, "t": 700, "block": 16, "block_size": 80, "n_selected": 5, "window": 40},
    {"hq": 5, "t": 700, "block": 64, "block_size": 32, "n_selected": 5, "window": 40},
    # No tile holds a block.
    {"hq": 4, "h": 2, "t": 300, "block": 2, "stride": 1, "block_size": 40, "n_selected": 4},
]
LENGTHS_OF = {"t": 203, "lengths": LENGTHS, "h": 2, "dv": 48}
OF_LENGTHS = [
    {**LENGTHS_OF, "hq": 6, "window": 40},
    {**LENGTHS_OF, "n_selected": 16, "window": 512},
    {**LENGTHS_OF, "hq": 40, "window": 20},
    {**LENGTHS_OF, "n_selected": 70, "window": 30},
    {**LENGTHS_OF, "hq": 4, "block": 2, "stride": 1, "block_size": 40, "n_selected": 4},
]


@pytest.mark.parametrize("dtype", HERE)
@pytest.mark.parametrize("sizes", [*STEPS, *OF_LENGTHS])
def test_step(sizes, dtype):
    agree(*step(sizes, dtype=dtype), dtype)


@pytest.mark.usefixtures("_many_processors")
@pytest.mark.parametrize(
    "sizes",
    [
        {"hq": 4, "t": 3300, "block_size": 16, "n_selected": 70, "window": 300},
        {
            "b": 2,
            "hq": 3,
            "h": 3,
            "t": 700,
            "block_size": 32,
            "n_selected": 5,
            "window": 900,
            "dv": 48,
        },
        {"hq": 8, "h": 2, "t": 2100, "n_selected": 12, "window": 512, "d": 64, "dv": 16},
        {"b": 2, "hq": 4, "h": 2, "t": 20, "n_selected": 4, "window": 8},  # no compressed key
        # Rows have keys for none, one or all of their programs.
        *(
            {"hq": hq, "t": 700, "lengths": (0, 3, 258, 700), "block": 4, "stride": 2}
            | {"block_size": 16, "n_selected": 5, "window": 300}
            for hq in (2, 36)
        ),
    ],
)
def test_step_where_a_gpu_would_split_rows(sizes):
    agree(*step(sizes))


@pytest.mark.parametrize("hq", [6, 40])
@pytest.mark.parametrize("room", [203, 20])
def test_compressed_keys_beyond_what_the_room_completes_are_not_read(hq, room):
    name, case = step({"t": room, "hq": hq, "h": 2, "lengths": (5, 900), "window": 40})
    for key in ("k_cmp", "v_cmp"):
        x = case.tensors[key]
        nothing = x.new_full((*x.shape[:2], 60, x.shape[3]), float("nan"))
        case.tensors[key] = torch.cat([x, nothing], 2)
    agree(name, case)


def test_a_length_below_zero_is_no_token():
    _, case = step({"t": 64, "lengths": (0, 0, 5)})
    want = case.call(**case.tensors)
    got = case.call(**{**case.tensors, "cache_seqlens": ints(-1, -(2**31), 5)})
    assert torch.equal(got, want) and not got[:2].any()


def test_each_branch_sees_each_entry_as_long_as_it_is():
    _, case = step({**LENGTHS_OF, "hq": 6})
    q, k, v, k_cmp, v_cmp, _, lengths = case.tensors.values()
    overlap = {"block": 32, "stride": 16}
    compressed = nsa_kernels.decode_compressed(q, k_cmp, v_cmp, lengths, **overlap)
    near = nsa_kernels.decode_window(q, k, v, lengths, window=40)
    spans = ints(0, 50, 30, 70, 150, 900).view(1, 1, 3, 2).expand(len(LENGTHS), 2, -1, -1)
    selected = nsa_kernels.decode_selected(q, k, v, spans, lengths)
    scores = nsa_kernels.decode_scores(q, k_cmp, compressed[1], 4, lengths, **PAPER)
    positions = lengths.clamp(max=203) - 1
    chosen = nsa_kernels.select_blocks(scores.unsqueeze(1), 3, first_position=positions)
    for i, n in enumerate(min(n, 203) for n in LENGTHS):
        query = q[i].double().unflatten(0, (2, 3))
        coarse = [x[i, :, : Sizes(**overlap).complete(n)].double() for x in (k_cmp, v_cmp)]
        fine = [x[i, :, :n].double() for x in (k, v)]
        inside = [torch.cat([x[:, :70], x[:, 150:]], 1) for x in fine]
        recent = [x[:, max(n - 40, 0) :] for x in fine]
        for got, keys in ((compressed, coarse), (near, recent), (selected, inside)):
            for a, w in zip(got, naive_rows(query, *keys), strict=True):
                torch.testing.assert_close(a[i].double(), w.flatten(0, 1), atol=1e-5, rtol=1e-5)
        lse = compressed[1][i].double().view(2, 3, 1)
        weights = torch.exp(query @ coarse[0].mT * 32**-0.5 - lse).sum(1)
        count = -(-n // 64)
        want = exact_scores(weights, count, **PAPER)
        torch.testing.assert_close(scores[i, :, :count].double(), want, atol=1e-5, rtol=1e-5)
        assert not scores[i, :, count:].any()
        if n == 0:
            assert not chosen[i].any()
            continue
        blocks = naive_select_blocks(want[None, None], 3, first_position=n - 1)[0, 0]
        for head in range(2):
            held = [[b * 64, min(b * 64 + 64, n)] for b in blocks[head].tolist() if b >= 0]
            assert [x for x in chosen[i, 0, head].tolist() if x[1]] == held


@pytest.mark.parametrize(
    ("scores", "blocks"),
    [
        ({5: 1.0, 11: 9.0}, [0, 9, 10, 5, 1, 2]),  # block 11 begins after the query
        ({i: float("nan") for i in range(3, 9)}, [0, 9, 10, 1, 2, 3]),
        ({i: float("inf") for i in range(3, 9)}, [0, 9, 10, 3, 4, 5]),
        ({3: -5.0, 4: 1.0, 5: float("nan"), 6: -0.0}, [0, 9, 10, 4, 1, 2]),
    ],
)
def test_forced_blocks_come_first_and_of_equal_ones_the_first(scores, blocks):
    given = torch.zeros(1, 1, 1, 12, device=DEVICE)
    for i, x in scores.items():
        given[..., i] = x
    options = {"block_size": 8, "first_position": 83}
    spans = nsa_kernels.select_blocks(given, 6, **options)[0, 0, 0].tolist()
    assert spans == [[8 * i, min(8 * i + 8, 84)] for i in blocks]
    assert naive_select_blocks(given.double(), 6, **options)[0, 0, 0].tolist() == blocks


def test_positions_of_entries():
    """Positions have any strides. Some are below 0, or past the last block."""
    scores = torch.rand(3, 5, 1, 4, device=DEVICE)
    for first in (ints(-2, 3, 28), ints(9, 0, 20, 0, 3, 0)[::2], ints(20).expand(3)):
        chosen = nsa_kernels.select_blocks(scores, 4, block_size=8, first_position=first)
        for entry, begin in enumerate(first.tolist()):
            for t in range(5):
                seen = min(max(begin + t + 1, 0), 32)
                assert int(chosen[entry, t, 0].diff(dim=-1).sum()) == seen


ROOM, H, HELD = 192, 2, (0, 64, 65, 190)


def caches(dtype=torch.float32):
    """Return q, k and v of four entries."""
    draw = normal(dtype)
    return draw(4, 4, 32), draw(4, H, ROOM, 32), draw(4, H, ROOM, 48)


@pytest.mark.parametrize(
    ("page", "heads_last", "dtype", "n_selected"),
    [
        (16, False, torch.bfloat16, 3),  # pages smaller than a selection block
        (96, True, torch.float32, 70),  # one and a half blocks
    ],
)
def test_pages_in_any_order_give_the_bits_of_a_contiguous_cache(
    page, heads_last, dtype, n_selected
):
    (q, *fine), draw, lengths = caches(dtype), normal(dtype, seed=1), ints(*HELD)
    others = draw(4, H, 11, 32), draw(4, H, 11, 48), draw(4, 4, 3), lengths
    (k, table), (v, _) = (paged(x, page, heads_last) for x in fine)
    for entry, n in enumerate(HELD):  # pages past the last token are not read
        table[entry, -(-n // page) :] = -(2**31) if entry % 2 else 2**31 - 1
    sizes = {"n_selected": n_selected, "window": 40}
    want = nsa_kernels.decode_step(q, *fine, *others, **sizes)
    for given in (table, torch.cat([table, table], 1)[:, : table.shape[1]]):
        got = nsa_kernels.decode_step(q, k, v, *others, given, **sizes)
        assert torch.equal(got, want) and bool(got.isfinite().all())
    spans = ints(0, 30, 20, 100, 150, 999).view(1, 1, 3, 2).expand(4, H, -1, -1)
    pairs = [
        (nsa_kernels.decode_window(q, *x, window=70), nsa_kernels.decode_selected(q, *y))
        for x, y in (
            ((k, v, lengths, table), (k, v, spans, lengths, table)),
            ((*fine, lengths), (*fine, spans, lengths)),
        )
    ]
    for got, want in zip(*pairs, strict=True):
        assert all(map(torch.equal, got, want))


@pytest.mark.parametrize(
    ("absent", "selected_len"),  # one program takes a row, or several do
    [(-1, 16), (-(2**31), None), (99999, 16), (2**31 - 1, None)],
)
def test_keys_of_a_page_that_is_not_there_are_not_attended_to(absent, selected_len):
    q, k, v = caches()
    (pool_k, table), (pool_v, _) = paged(k, 64, False), paged(v, 64, False)
    alone, entry, lengths = HELD.index(64), HELD.index(190), ints(*HELD)
    table[entry, 1] = table[alone] = absent
    spans = ints(0, 190).view(1, 1, 1, 2).expand(4, H, -1, -1)
    got = nsa_kernels.decode_selected(
        q, pool_k, pool_v, spans, lengths, table, selected_len=selected_len
    )
    around = ints(0, 64, 128, 190).view(1, 1, 2, 2).expand(4, H, -1, -1)
    for a, w in zip(got, nsa_kernels.decode_selected(q, k, v, around, lengths), strict=True):
        torch.testing.assert_close(a[entry], w[entry], atol=1e-5, rtol=1e-5)
    assert not got[0][alone].any() and bool((got[1][alone] == -torch.inf).all())
