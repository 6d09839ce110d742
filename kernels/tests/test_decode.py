"""The decode step and its parts against float64 and against prefill (interpreter, or CUDA)."""

from __future__ import annotations

from typing import Any

import nsa_kernels
import oracle
import pytest
import torch
from nsa_kernels.attention.decode import scores as decode_scores
from nsa_kernels.attention.decode.config import decode_spans_config
from nsa_kernels.launch import device as limits
from nsa_kernels.scoring.naive import naive_select_blocks
from nsa_kernels.selection.ranges.config import ranges_config
from nsa_kernels.selection.rows.config import rows_config

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def randn(*size: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=gen).to(dtype).to(DEVICE)


@pytest.mark.parametrize(("block", "stride", "block_size"), [(32, 16, 64), (8, 4, 16), (8, 8, 8)])
def test_scores_are_those_of_prefill(block, stride, block_size) -> None:
    t, hq, h, d = 150, 4, 2, 32
    n = (t - block) // stride + 1
    q, k, v = randn(2, t, hq, d), randn(2, n, h, d, seed=1), randn(2, n, h, d, seed=2)
    out, lse, scores = nsa_kernels.compressed_attention_with_scores(
        q, k, v, block=block, stride=stride, block_size=block_size
    )
    cache = [x.transpose(1, 2).contiguous() for x in (k, v)]
    last, last_lse = nsa_kernels.decode_compressed(q[:, -1], *cache)
    torch.testing.assert_close(last, out[:, -1], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(last_lse, lse[:, -1], atol=1e-5, rtol=1e-5)
    options = {"block": block, "stride": stride, "block_size": block_size}
    found = nsa_kernels.decode_scores(q[:, -1], cache[0], last_lse, scores.shape[3], **options)
    torch.testing.assert_close(found, scores[:, -1], atol=1e-5, rtol=1e-5)


def chosen(ranges: torch.Tensor, size: int) -> list[int]:
    return [start // size for start, end in ranges.tolist() if end > start]


def test_forced_blocks_come_first_and_ties_go_to_the_lowest_index() -> None:
    scores = torch.zeros(1, 1, 1, 12, device=DEVICE)
    scores[..., 5] = 1.0
    scores[..., 11] = 9.0  # begins behind the query
    ranges = nsa_kernels.select_blocks(scores, 6, block_size=8, first_position=83)
    assert chosen(ranges[0, 0, 0], 8) == [0, 9, 10, 5, 1, 2]
    assert ranges[0, 0, 0, 2].tolist() == [80, 84]


def test_a_score_that_is_no_number_displaces_no_forced_block() -> None:
    scores = torch.zeros(1, 1, 1, 12, device=DEVICE)
    scores[..., 3:9] = float("nan")
    ranges = nsa_kernels.select_blocks(scores, 4, block_size=8, first_position=83)
    assert chosen(ranges[0, 0, 0], 8)[:3] == [0, 9, 10]


def test_fewer_blocks_than_asked_leave_empty_spans() -> None:
    scores = torch.rand(2, 20, 2, 3, device=DEVICE)
    ranges = nsa_kernels.select_blocks(scores, 5, block_size=8)
    for t in range(20):
        assert sorted(chosen(ranges[1, t, 1], 8)) == list(range(t // 8 + 1))
        assert int(ranges[1, t, 1].diff(dim=-1).sum()) == t + 1


def test_selection_agrees_with_a_stable_sort() -> None:
    """Scores of few different values, so that most comparisons are ties."""
    gen = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 3, (1, 160, 1, 20), generator=gen).float().to(DEVICE)
    ranges = nsa_kernels.select_blocks(scores, 6, block_size=8)
    for t in range(160):
        own = t // 8
        row = scores[0, t, 0, : own + 1].clone()
        row[[0, max(own - 1, 0), own]] = float("inf")
        order = torch.sort(row, descending=True, stable=True).indices[:6].tolist()
        assert chosen(ranges[0, t, 0], 8) == order


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    ("b", "hq", "h", "s", "blocks", "window", "strides"),
    [
        (2, 6, 2, 203, 5, 40, (32, 16, 16)),
        (1, 3, 1, 6500, 25, 300, (32, 16, 16)),
        (1, 3, 1, 4200, 5, 700, (32, 16, 16)),
        (1, 40, 2, 3000, 5, 40, (32, 16, 16)),  # logits of so many heads would be more than keys
        (2, 6, 2, 1500, 5, 40, (32, 16, 64)),
        (2, 6, 2, 1500, 5, 40, (48, 16, 48)),
        (1, 5, 1, 700, 5, 40, (16, 16, 80)),
        (1, 5, 1, 700, 5, 40, (64, 16, 32)),
    ],
)
def test_step_is_the_gated_sum_of_its_branches(dtype, b, hq, h, s, blocks, window, strides) -> None:
    """Few rows of many keys are split, each branch into shares of its own number."""
    check_step(dtype, b, hq, h, s, blocks, window, strides)


@pytest.mark.parametrize(
    ("b", "hq", "h", "s", "blocks", "window", "strides", "widths"),
    [
        (1, 4, 1, 3300, 70, 300, (32, 16, 16), (32, 32)),  # spans that are ordered beforehand
        (2, 3, 3, 700, 5, 900, (32, 16, 32), (32, 48)),  # a head each, values wider than keys
        (1, 8, 2, 2100, 12, 512, (32, 16, 64), (64, 16)),
        (2, 4, 2, 20, 4, 8, (32, 16, 64), (32, 32)),  # no compressed key
    ],
)
def test_step_where_a_gpu_would_split_rows_often(
    monkeypatch, b, hq, h, s, blocks, window, strides, widths
) -> None:
    """Of 132 multiprocessors few rows leave many idle, and each branch has many shares."""
    rules = (rows_config, ranges_config, decode_spans_config)
    monkeypatch.setattr(limits, "CPU_LIMITS", limits.Device(processors=132, shared_bytes=99 * 1024))
    for rule in (limits.device_limits, *rules):
        rule.cache_clear()
    try:
        check_step(torch.float32, b, hq, h, s, blocks, window, strides, *widths)
    finally:
        for rule in (limits.device_limits, *rules):
            rule.cache_clear()


def test_step_of_an_empty_batch() -> None:
    q, k, gates = randn(0, 4, 32), randn(0, 2, 64, 32), torch.rand(0, 4, 3, device=DEVICE)
    assert nsa_kernels.decode_step(q, k, k, k[:, :, :3], k[:, :, :3], gates).shape == (0, 4, 32)


def test_key_heads_are_where_a_grid_takes_more_than_65535(monkeypatch) -> None:
    grids: list[tuple[int, ...]] = []

    class Recorded:
        pre_run_hooks = (None,)  # whose launches are Triton's own

        def __getitem__(self, grid: tuple[int, ...]) -> Any:
            grids.append(grid)
            return lambda *args, **options: None

    for name in ("decode_scores_kernel", "decode_scores_of_logits_kernel"):
        monkeypatch.setattr(decode_scores, name, Recorded())
    q, k, gates = randn(3, 4, 32), randn(3, 2, 640, 32), torch.rand(3, 4, 3, device=DEVICE)
    cmp = k[:, :, :39]
    nsa_kernels.decode_step(q, k, k, cmp, cmp, gates)
    nsa_kernels.decode_scores(q, cmp, torch.zeros(3, 4, device=DEVICE), 10)
    assert [grid[0] for grid in grids] == [6, 6]


def check_step(dtype, b, hq, h, s, blocks, window, strides, d=32, dv=32) -> None:
    room = s + 50
    block, stride, size = strides
    n = max(0, (s - block) // stride + 1)
    q, gates = randn(b, hq, d, dtype=dtype), torch.sigmoid(randn(b, hq, 3, dtype=dtype))
    # Caches with room for more, as a decoder has them.
    k, v = (
        randn(b, h, room, width, dtype=dtype, seed=i)[:, :, :s] for i, width in ((1, d), (2, dv))
    )
    k_cmp, v_cmp = (
        randn(b, h, n + 4, width, dtype=dtype, seed=i)[:, :, :n] for i, width in ((3, d), (4, dv))
    )
    options = {"block": block, "stride": stride, "block_size": size}
    out = nsa_kernels.decode_step(
        q, k, v, k_cmp, v_cmp, gates, **options, n_selected=blocks, window=window
    )
    q1, kc, vc = q.unsqueeze(1), k_cmp.transpose(1, 2), v_cmp.transpose(1, 2)
    every = torch.ones(1, n, dtype=torch.bool, device=DEVICE)
    compressed, _, weights = oracle.banded(q1, kc, vc, every)
    scores = torch.zeros(b, 1, h, -(-s // size), dtype=torch.float32, device=DEVICE)
    for key in range(n):
        for place in range(key, key + block // stride):
            scores[..., place * stride // size] += weights[..., key].float()
    spans = nsa_kernels.select_blocks(scores, blocks, block_size=size, first_position=s - 1)
    selected, _ = oracle.ranges(q.view(b, 1, h, hq // h, d), k, v, spans)
    kw, vw = (x[:, :, -window:].transpose(1, 2) for x in (k, v))
    near, _, _ = oracle.banded(
        q1, kw, vw, torch.ones(1, kw.shape[1], dtype=torch.bool, device=DEVICE)
    )
    branches = torch.stack([compressed[:, 0], selected.view(b, hq, dv), near[:, 0]], 2)
    want = (gates.double().unsqueeze(-1) * branches).sum(2)
    torch.testing.assert_close(out.double(), want, atol=oracle.TOLERANCE[dtype], rtol=1e-3)


def test_no_compressed_key_yet() -> None:
    q, k, v = randn(1, 2, 16), randn(1, 1, 20, 16), randn(1, 1, 20, 16, seed=1)
    gates = torch.ones(1, 2, 3, device=DEVICE)
    none = k[:, :, :0]
    out = nsa_kernels.decode_step(q, k, v, none, none, gates, window=64)
    dense, _ = nsa_kernels.decode_window(q, k, v, window=64)
    torch.testing.assert_close(out, 2 * dense, atol=1e-5, rtol=1e-5)


def test_bad_inputs_are_refused() -> None:
    scores = torch.zeros(1, 1, 1, 4, device=DEVICE)
    with pytest.raises(ValueError, match="first"):
        nsa_kernels.select_blocks(scores, 2)
    q, k = randn(1, 2, 16), randn(1, 1, 5, 16)
    with pytest.raises(ValueError, match="must divide"):
        nsa_kernels.decode_scores(q, k, torch.zeros(1, 2, device=DEVICE), 2, stride=5)


def test_one_graph_under_torch_compile() -> None:
    q, gates = randn(1, 2, 16), torch.rand(1, 2, 3, device=DEVICE)
    k, v = randn(1, 1, 100, 16), randn(1, 1, 100, 16, seed=1)
    k_cmp, v_cmp = randn(1, 1, 5, 16), randn(1, 1, 5, 16, seed=1)
    scores = torch.rand(1, 3, 1, 6, device=DEVICE)

    def both(*x):
        step = nsa_kernels.decode_step(*x, block_size=16, n_selected=4, window=20)
        return step, nsa_kernels.select_blocks(scores, 4, block_size=16, first_position=90)

    args = (q, k, v, k_cmp, v_cmp, gates)
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*args), both(*args), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("gates", [(1, 2, 1), (1, 3), (2, 2, 3)])
def test_gates_that_do_not_fit_are_refused(gates) -> None:
    """The kernel would read past them."""
    q, k, gates = randn(1, 2, 16), randn(1, 1, 100, 16), torch.rand(*gates, device=DEVICE)
    with pytest.raises(ValueError, match=r"gates \[B,HQ,3\]"):
        nsa_kernels.decode_step(q, k, k, k[:, :, :5], k[:, :, :5], gates)
    with pytest.raises(ValueError, match="three branches"):
        nsa_kernels.gated_sum(q, q, q[:, :1], torch.rand(1, 2, 3, device=DEVICE))


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, lse: (q, k[..., :8], lse), ValueError, "head dim"),
        (lambda q, k, lse: (q.double(), k, lse), TypeError, "dtype"),
        (lambda q, k, lse: (q, k, lse[:, :1]), ValueError, "lse"),
        (lambda q, k, lse: (q, k.expand(2, -1, -1, -1), lse), ValueError, "expected q"),
        (lambda q, k, lse: (q[:, :3], k, lse[:, :3]), ValueError, "multiple of H"),
        (lambda q, k, lse: (q.to("meta"), k, lse), ValueError, "one device"),
    ],
)
def test_scores_refuse_what_does_not_fit(change, error, word) -> None:
    q, k, lse = randn(1, 4, 16), randn(1, 2, 5, 16), torch.zeros(1, 4, device=DEVICE)
    with pytest.raises(error, match=word):
        nsa_kernels.decode_scores(*change(q, k, lse), 2)
    with pytest.raises(ValueError, match="must divide"):
        nsa_kernels.decode_scores(q, k, lse, 2, stride=0)


def test_heads_that_do_not_share_evenly_are_refused() -> None:
    q, k = randn(1, 3, 16), randn(1, 2, 10, 16)
    with pytest.raises(ValueError, match="multiple of H"):
        nsa_kernels.decode_compressed(q, k, k)
    with pytest.raises(ValueError, match="multiple of H"):
        nsa_kernels.decode_selected(q, k, k, torch.zeros(1, 2, 1, 2, dtype=torch.int32).to(DEVICE))


@pytest.mark.parametrize("which", range(6))
def test_a_gradient_is_not_lost_in_silence(which) -> None:
    q, gates = randn(1, 2, 16), torch.rand(1, 2, 3, device=DEVICE)
    k, v = randn(1, 1, 100, 16), randn(1, 1, 100, 16, seed=1)
    args = [q, k, v, randn(1, 1, 5, 16), randn(1, 1, 5, 16, seed=1), gates]
    args[which].requires_grad_()
    with pytest.raises(ValueError, match="decode_step: has no backward"):
        nsa_kernels.decode_step(*args)
    with torch.no_grad():
        assert not nsa_kernels.decode_step(*args).requires_grad


@pytest.mark.skipif(DEVICE == "cuda", reason="the CPU is where kernels cannot run only there")
def test_blocks_are_selected_on_a_gpu_only(monkeypatch) -> None:
    monkeypatch.setattr("nsa_kernels.launch.checks.CPU_ALLOWED", False)
    with pytest.raises(ValueError, match="needs CUDA tensors"):
        nsa_kernels.select_blocks(torch.zeros(1, 1, 1, 4), 3)


@pytest.mark.parametrize(
    ("scores", "how", "error", "said"),
    [
        (torch.zeros(1, 1, 1, 4), {"first_position": 1000}, ValueError, "do not hold 1001 tokens"),
        (
            torch.zeros(1, 1, 1, 4),
            {"block_size": 0},
            ValueError,
            "block_size must be a whole number of at least 1",
        ),
        (torch.zeros(1, 1, 4), {}, ValueError, "expected scores"),
        (torch.zeros(1, 1, 1, 4).half(), {}, TypeError, "must be float32"),
        (torch.zeros(1, 1, 1, 4).long(), {}, TypeError, "must be float32"),
    ],
)
def test_scores_that_cannot_be_chosen_from_are_refused(scores, how, error, said) -> None:
    with pytest.raises(error, match=said):
        nsa_kernels.select_blocks(scores.to(DEVICE), 4, **how)


def test_scores_below_zero_and_nan_count_as_zero() -> None:
    scores = torch.zeros(1, 1, 1, 10, device=DEVICE)
    scores[..., 3:7] = torch.tensor([-5.0, 1.0, float("nan"), -0.0])
    ranges = nsa_kernels.select_blocks(scores, 6, block_size=8, first_position=79)
    assert chosen(ranges[0, 0, 0], 8) == [0, 8, 9, 4, 1, 2]


@pytest.mark.parametrize("name", ["decode_compressed", "decode_window", "decode_selected"])
def test_a_branch_names_itself_and_the_shapes_it_was_given(name) -> None:
    more = {"decode_window": {"window": 4}, "decode_selected": {"ranges": torch.zeros(1)}}
    q, k = randn(4, 2, 16), randn(2, 2, 9, 16)
    with pytest.raises(ValueError, match=rf"{name}: expected .* got \(4, 2, 16\), \(2, 2, 9, 16\)"):
        getattr(nsa_kernels, name)(q, k, k, **more.get(name, {}))


def test_an_infinite_score_displaces_no_forced_block() -> None:
    scores = torch.zeros(1, 1, 1, 12, device=DEVICE)
    scores[..., 3:9] = float("inf")
    ranges = nsa_kernels.select_blocks(scores, 5, block_size=8, first_position=83)
    assert chosen(ranges[0, 0, 0], 8) == [0, 9, 10, 3, 4]
    naive = naive_select_blocks(scores.double(), 5, block_size=8, first_position=83)
    assert naive[0, 0, 0].tolist() == [0, 9, 10, 3, 4]


def test_the_formula_counts_what_is_no_weight_as_zero_too() -> None:
    scores = torch.zeros(1, 1, 1, 10, dtype=torch.float64)
    scores[..., 3:7] = torch.tensor([-5.0, 1.0, float("nan"), -0.0])
    naive = naive_select_blocks(scores, 6, block_size=8, first_position=79)
    assert naive[0, 0, 0].tolist() == [0, 8, 9, 4, 1, 2]


def test_the_branches_of_an_empty_batch() -> None:
    q, k = randn(0, 4, 32), randn(0, 2, 64, 32)
    ranges = torch.zeros(0, 2, 3, 2, dtype=torch.int32, device=DEVICE)
    for out, lse in (
        nsa_kernels.decode_compressed(q, k, k),
        nsa_kernels.decode_window(q, k, k, window=8),
        nsa_kernels.decode_selected(q, k, k, ranges),
    ):
        assert out.shape == (0, 4, 32) and lse.shape == (0, 4)
    lse = torch.zeros(0, 4, device=DEVICE)
    assert nsa_kernels.decode_scores(q, k, lse, 3).shape == (0, 2, 3)
    gates = torch.zeros(0, 4, 3, device=DEVICE)
    assert nsa_kernels.gated_sum(q, q, q, gates).shape == (0, 4, 32)
    scores = torch.zeros(0, 1, 2, 4, device=DEVICE)
    assert nsa_kernels.select_blocks(scores, 3).shape == (0, 1, 2, 3, 2)
