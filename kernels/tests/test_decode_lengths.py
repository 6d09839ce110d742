"""Decoding a batch of unequal lengths: against float64, entry by entry (interpreter, or CUDA)."""

from __future__ import annotations

from collections.abc import Iterator

import nsa_kernels
import oracle
import pytest
import torch
from nsa_kernels.attention.decode import api
from nsa_kernels.attention.decode.config import decode_spans_config
from nsa_kernels.band.naive import attend, weights
from nsa_kernels.launch import device as limits
from nsa_kernels.scoring.naive import naive_select_blocks
from nsa_kernels.selection.ranges.config import ranges_config
from nsa_kernels.selection.rows.config import rows_config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [0, 1, 31, 32, 64, 65, 203, 900]
"""Nothing, one token, fewer than a compressed key, at and behind the edge of a block, all there is
room for, and more."""
SIZES = {"block": 32, "stride": 16, "block_size": 64}
Tensors = tuple[torch.Tensor, ...]


def randn(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=gen).to(dtype).to(DEVICE)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def caches(lengths: list[int], room: int, hq: int, h: int, sizes: dict[str, int], dtype) -> Tensors:
    """q, k, v, k_cmp, v_cmp, gates and lengths. Room behind an entry is filled with what would be
    seen at once: large keys, and values that are no numbers."""
    b = len(lengths)
    q, gates = randn(b, hq, 32, dtype=dtype), torch.rand(b, hq, 3, device=DEVICE)
    keys = max(0, (room - sizes["block"]) // sizes["stride"] + 1)
    filled = []
    for seed, (width, count) in enumerate([(32, room), (48, room), (32, keys), (48, keys)], 1):
        x = randn(b, h, count, width, dtype=dtype, seed=seed)
        for i, n in enumerate(lengths):
            held = complete(n, sizes) if seed > 2 else n
            x[i, :, held:] = 90.0 if width == 32 else float("nan")
        filled.append(x)
    return q, *filled, gates, ints(*lengths)


def complete(tokens: int, sizes: dict[str, int]) -> int:
    return max(0, (tokens - sizes["block"]) // sizes["stride"] + 1)


def naive_scores(q: torch.Tensor, k_cmp: torch.Tensor, sizes: dict[str, int], n_blocks: int):
    """Equations 8 to 10 for one query q [1, 1, HQ, D] that sees all of k_cmp [1, Nc, H, D]."""
    every = torch.ones(1, k_cmp.shape[1], dtype=torch.bool, device=DEVICE)
    p, _ = weights(q, k_cmp, every, None)
    p = p.unflatten(1, (k_cmp.shape[2], -1)).sum(2).transpose(1, 2)
    scores = p.new_zeros(1, 1, k_cmp.shape[2], n_blocks)
    for key in range(p.shape[3]):
        for part in range(key, key + sizes["block"] // sizes["stride"]):
            scores[..., part * sizes["stride"] // sizes["block_size"]] += p[..., key]
    return scores


def naive_step(args: Tensors, entry: int, sizes: dict[str, int], blocks: int, window: int):
    """The step of one entry as the paper has it, float64 [HQ, Dv]."""
    q, k, v, k_cmp, v_cmp, gates, lengths = (x[entry : entry + 1] for x in args)
    n = min(int(lengths), k.shape[2])
    if n == 0:
        return q.new_zeros(q.shape[1], v.shape[3], dtype=torch.float64)
    size, q, gates = sizes["block_size"], q.double().unsqueeze(1), gates.double().unsqueeze(1)
    k, v = (x[:, :, :n].double().transpose(1, 2) for x in (k, v))
    k_cmp, v_cmp = (x[:, :, : complete(n, sizes)].double().transpose(1, 2) for x in (k_cmp, v_cmp))
    place = torch.arange(n, device=DEVICE)
    every = torch.ones(1, k_cmp.shape[1], dtype=torch.bool, device=DEVICE)
    compressed, _ = attend(q, k_cmp, v_cmp, every, None)
    near, _ = attend(q, k, v, (place >= n - window)[None], None)
    scores = naive_scores(q, k_cmp, sizes, -(-n // size))
    chosen = naive_select_blocks(scores, blocks, block_size=size, first_position=n - 1)
    selected = [
        attend(of_group, k[:, :, h : h + 1], v[:, :, h : h + 1], seen, None)[0]
        for h, of_group in enumerate(q.chunk(k.shape[2], 2))
        for seen in [torch.isin(place // size, chosen[0, 0, h])[None]]
    ]
    branches = torch.stack([compressed, torch.cat(selected, 2), near], -2)
    return (gates.unsqueeze(-1) * branches).sum(-2)[0, 0]


@pytest.fixture
def many_processors(monkeypatch) -> Iterator[None]:
    """Of 132 multiprocessors few rows leave many idle, so that each is split."""
    rules = (limits.device_limits, rows_config, ranges_config, decode_spans_config)
    monkeypatch.setattr(limits, "CPU_LIMITS", limits.Device(processors=132, shared_bytes=99 * 1024))
    for rule in rules:
        rule.cache_clear()
    yield
    for rule in rules:
        rule.cache_clear()


def check_step(args: Tensors, sizes: dict[str, int], blocks: int, window: int) -> None:
    out = nsa_kernels.decode_step(*args, **sizes, n_selected=blocks, window=window)
    want = torch.stack([naive_step(args, i, sizes, blocks, window) for i in range(out.shape[0])])
    near = oracle.TOLERANCE[out.dtype]
    torch.testing.assert_close(out.double(), want, atol=near, rtol=1e-3)


@pytest.mark.parametrize(
    ("dtype", "hq", "blocks", "window"),
    [
        (torch.float32, 6, 3, 40),
        (torch.bfloat16, 2, 16, 512),
        (torch.float32, 40, 3, 20),  # logits of so many heads would be more than keys
        (torch.float32, 2, 70, 30),  # spans that are ordered beforehand
    ],
)
def test_a_step_sees_each_entry_as_long_as_it_is(dtype, hq, blocks, window) -> None:
    args = caches(LENGTHS, 203, hq, 2, SIZES, dtype)
    check_step(args, SIZES, blocks, window)


@pytest.mark.parametrize("hq", [2, 36])
def test_shares_follow_each_length(many_processors: None, hq: int) -> None:
    """Of rows that are split some have no share, one, or all of them."""
    sizes = {"block": 4, "stride": 2, "block_size": 16}
    args = caches([0, 3, 258, 700], 700, hq, 1, sizes, torch.float32)
    check_step(args, sizes, 5, 300)


def test_what_is_below_zero_counts_as_no_token() -> None:
    args = caches([0, 0, 5], 64, 2, 1, SIZES, torch.float32)
    below = (*args[:6], ints(-1, -(2**31), 5))
    both = [nsa_kernels.decode_step(*x, **SIZES) for x in (args, below)]
    assert torch.equal(*both) and not both[0][:2].any()


def test_all_entries_of_one_length_are_what_they_are_without_lengths() -> None:
    *args, _ = caches([203], 203, 6, 2, SIZES, torch.bfloat16)
    got = nsa_kernels.decode_step(*args, ints(203), n_selected=3)
    torch.testing.assert_close(got, nsa_kernels.decode_step(*args, n_selected=3))


def test_each_branch_alone_sees_each_entry_as_long_as_it_is() -> None:
    q, k, v, k_cmp, v_cmp, _, lengths = caches(LENGTHS, 203, 6, 2, SIZES, torch.float32)
    overlap = {"block": 32, "stride": 16}
    compressed = nsa_kernels.decode_compressed(q, k_cmp, v_cmp, lengths, **overlap)
    near = nsa_kernels.decode_window(q, k, v, lengths, window=40)
    spans = ints(0, 50, 30, 70, 150, 900).view(1, 1, 3, 2).expand(len(LENGTHS), 2, -1, -1)
    selected = nsa_kernels.decode_selected(q, k, v, spans, lengths)
    scores = nsa_kernels.decode_scores(q, k_cmp, compressed[1], 4, lengths, **SIZES)
    chosen = nsa_kernels.select_blocks(
        scores.unsqueeze(1), 3, first_position=lengths.clamp(max=203) - 1
    )
    for i, n in enumerate(min(n, 203) for n in LENGTHS):
        held = complete(n, SIZES)
        query = q[i : i + 1].double().unsqueeze(1)
        of_keys = [x[i : i + 1, :, :held].double().transpose(1, 2) for x in (k_cmp, v_cmp)]
        whole = [x[i : i + 1, :, :n].double().transpose(1, 2) for x in (k, v)]
        place = torch.arange(n, device=DEVICE)
        inside = (place < 70) | (place >= 150)
        every = torch.ones(1, held, dtype=torch.bool, device=DEVICE)
        for (out, lse), keys, seen in (
            (compressed, of_keys, every),
            (near, whole, (place >= n - 40)[None]),
            (selected, whole, inside[None]),
        ):
            want, want_lse = attend(query, *keys, seen, None)
            torch.testing.assert_close(out[i].double(), want[0, 0], atol=1e-5, rtol=1e-5)
            torch.testing.assert_close(lse[i].double(), want_lse[0, 0], atol=1e-5, rtol=1e-5)
        count = -(-n // 64)
        want_scores = naive_scores(query, of_keys[0], SIZES, count)
        torch.testing.assert_close(
            scores[i, :, :count].double(), want_scores[0, 0], atol=1e-5, rtol=1e-5
        )
        assert not scores[i, :, count:].any()
        if n == 0:
            assert not chosen[i].any()
            continue
        blocks = naive_select_blocks(want_scores, 3, first_position=n - 1)[0, 0]
        for head in range(2):
            spans_of = [(b * 64, min(b * 64 + 64, n)) for b in blocks[head].tolist() if b >= 0]
            assert [tuple(x) for x in chosen[i, 0, head].tolist() if x[1]] == spans_of


def test_positions_of_several_queries_an_entry() -> None:
    scores = torch.rand(3, 5, 1, 4, device=DEVICE)
    chosen = nsa_kernels.select_blocks(scores, 4, block_size=8, first_position=ints(-2, 3, 28))
    for entry, first in enumerate((-2, 3, 28)):
        for t in range(5):
            tokens = min(first + t + 1, 32)  # behind the last block is no query
            assert int(chosen[entry, t, 0].diff(dim=-1).sum()) == max(tokens, 0)


def test_a_generation_has_one_signature() -> None:
    """All steps are replays of one program, whatever the lengths."""
    *filled, _ = caches([64] * 3, 64, 2, 1, SIZES, torch.float32)
    args = (*filled, ints(1, 40, 60))
    api._launch.programs.clear()
    for _ in range(4):
        nsa_kernels.decode_step(*args, **SIZES)
        args[6].add_(1)
    (program,) = api._launch.programs.values()
    assert callable(program)
    check_step(args, SIZES, 16, 512)


def test_lengths_go_into_one_graph_under_torch_compile() -> None:
    q, k, v, k_cmp, v_cmp, gates, lengths = caches([0, 90], 100, 2, 1, SIZES, torch.float32)

    def parts(lengths: torch.Tensor) -> Tensors:
        step = nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates, lengths, n_selected=4)
        _, lse = nsa_kernels.decode_compressed(q, k_cmp, v_cmp, lengths)
        scores = nsa_kernels.decode_scores(q, k_cmp, lse, 2, lengths)
        spans = nsa_kernels.select_blocks(scores.unsqueeze(1), 3, first_position=lengths - 1)
        near, _ = nsa_kernels.decode_window(q, k, v, lengths, window=8)
        return (
            step,
            scores,
            spans,
            near,
            nsa_kernels.decode_selected(q, k, v, spans[:, 0], lengths)[0],
        )

    compiled = torch.compile(parts, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(lengths), parts(lengths), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("lengths", "error", "said"),
    [
        (torch.zeros(2), TypeError, "cache_seqlens must be an int32 tensor; got torch.float32"),
        (
            torch.zeros(2).long(),
            TypeError,
            "cache_seqlens must be an int32 tensor; got torch.int64",
        ),
        ([1, 2], TypeError, "cache_seqlens must be an int32 tensor; got list"),
        (torch.zeros(3).int(), ValueError, r"cache_seqlens must be \[2\], one number an entry"),
        (torch.zeros(2, 1).int(), ValueError, r"cache_seqlens must be \[2\], one number an entry"),
        (torch.zeros(2).int().to("meta"), ValueError, r"cache_seqlens .* on meta"),
    ],
)
def test_lengths_that_do_not_fit_are_refused(lengths, error, said) -> None:
    q, k, v, k_cmp, v_cmp, gates, _ = caches([9, 40], 64, 2, 1, SIZES, torch.float32)
    if isinstance(lengths, torch.Tensor) and lengths.device.type != "meta":
        lengths = lengths.to(DEVICE)
    lse, spans = q[..., 0].float(), torch.zeros(2, 1, 1, 2, dtype=torch.int32, device=DEVICE)
    calls = {
        "decode_step": lambda: nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates, lengths),
        "decode_compressed": lambda: nsa_kernels.decode_compressed(q, k_cmp, v_cmp, lengths),
        "decode_scores": lambda: nsa_kernels.decode_scores(q, k_cmp, lse, 1, lengths),
        "decode_window": lambda: nsa_kernels.decode_window(q, k, v, lengths, window=4),
        "decode_selected": lambda: nsa_kernels.decode_selected(q, k, v, spans, lengths),
    }
    for op, call in calls.items():
        with pytest.raises(error, match=f"{op}: {said}"):
            call()


@pytest.mark.parametrize("op", ["decode_compressed", "decode_window", "decode_selected"])
def test_no_gradient_is_lost_where_lengths_differ(op) -> None:
    q, k, v, *_, lengths = caches([9, 40], 64, 2, 1, SIZES, torch.float32)
    spans = torch.zeros(2, 1, 1, 2, dtype=torch.int32, device=DEVICE)
    more = {"decode_window": {"window": 4}}.get(op, {})
    args = (q.requires_grad_(), k, v, *([spans] if op == "decode_selected" else []), lengths)
    with pytest.raises(ValueError, match=f"{op}: has no backward"):
        getattr(nsa_kernels, op)(*args, **more)


@pytest.mark.parametrize("of", ["strided", "expanded"])
def test_positions_in_any_strides(of: str) -> None:
    scores = torch.rand(3, 2, 1, 4, device=DEVICE)
    first = ints(9, 0, 20, 0, 3, 0)[::2] if of == "strided" else ints(20).expand(3)
    got = nsa_kernels.select_blocks(scores, 3, block_size=8, first_position=first)
    want = nsa_kernels.select_blocks(scores, 3, block_size=8, first_position=first.clone())
    packed = [
        nsa_kernels.select_blocks(scores[i : i + 1], 3, block_size=8, first_position=n)
        for i, n in enumerate(first.tolist())
    ]
    assert torch.equal(got, torch.cat(packed)) and torch.equal(got, want)


@pytest.mark.parametrize("hq", [6, 40])  # 40: logits would be more than keys
@pytest.mark.parametrize("room", [203, 20])
def test_compressed_keys_beyond_what_the_room_completes_are_not_read(hq: int, room: int) -> None:
    """A length over the room saw keys that nobody wrote."""
    q, k, v, k_cmp, v_cmp, *others = caches([5, 900], room, hq, 2, SIZES, torch.float32)
    wider = [
        torch.cat([x, x.new_full((*x.shape[:2], 60, x.shape[3]), float("nan"))], 2)
        for x in (k_cmp, v_cmp)
    ]
    check_step((q, k, v, *wider, *others), SIZES, 3, 40)


def test_ranges_without_the_axis_of_entries_are_refused() -> None:
    q, k, v, *_, lengths = caches([9, 40], 64, 2, 1, SIZES, torch.float32)
    spans = torch.zeros(1, 1, 2, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=r"decode_selected: expected ranges \[B,H,n,2\]; got"):
        nsa_kernels.decode_selected(q, k, v, spans, lengths)
