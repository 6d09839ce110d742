"""Rows, packed rows and spans: launch configurations, and inputs that only one of these takes."""

import dataclasses

import nsa_kernels
import pytest
import torch
from cases import DEVICE, agree, check, doubled, ints, make
from nsa_kernels.selection.ranges import backward as ranges_backward

SHORT = {
    "selection_rows": {"t": 4, "n": 64},
    "selection_varlen": {"lengths": (5, 9)},
    "selection_ranges": {"t": 2, "n": 150, "spans": 3},
}
LONG = {
    "selection_rows": {"t": 4, "n": 512},
    "selection_varlen": {"lengths": (300, 9, 700)},
    "selection_ranges": {"t": 2, "n": 900, "spans": 3},
}


def chosen(name, case, **options):
    tensors = [x for key, x in case.tensors.items() if key != "cu_seqlens"]
    return nsa_kernels.chosen_config(name, *tensors, **options)


def configured(case, config):
    return dataclasses.replace(case, call=lambda **x: case.call(**x, config=config))


def forward(name, case):
    check(name, case.call(**case.tensors), case.formula(**doubled(case.tensors)), torch.float32)


@pytest.mark.parametrize("name", SHORT)
def test_a_config_is_refused_that_leaves_heads_or_keys_out(name):
    short, long = make(name, **SHORT[name]), make(name, **LONG[name])
    config = chosen(name, short)
    forward(name, configured(short, config))
    with pytest.raises(ValueError, match="q has 100"):
        forward(name, configured(make(name, **SHORT[name], hq=100), config))
    nothing = {"selection_varlen": {"chunk": 0}, "selection_ranges": {"splits": 0}}
    odd = dataclasses.replace(config, **nothing.get(name, {"chunk": config.block_l + 8}))
    with pytest.raises(ValueError, match=f"{name}: "):
        forward(name, configured(short, odd))
    if name != "selection_rows":  # configs of the other calls serve any length
        forward(name, configured(long, config))
        return
    with pytest.raises(ValueError, match="512 keys"):
        forward(name, configured(long, config))
    whole = dataclasses.replace(chosen(name, long), splits=1, chunk=512)
    for case in (short, long):
        forward(name, configured(case, whole))


@pytest.mark.parametrize("name", SHORT)
def test_no_rows_have_a_config(name):
    assert chosen(name, make(name, b=0)).head_tiles == 1


@pytest.mark.parametrize("hint", [70, 5, 10**9])
def test_rows_of_like_length_take_a_program_each(hint):
    """Results do not depend on whether the hint is right."""
    name = "selection_varlen"
    case = make(name, lengths=(70, 0, 33, 64, 1, 65, 40), hq=18, d=32, dv=48)
    config = chosen(name, case, longest=hint)
    if DEVICE == "cpu":  # seven rows do not fill a GPU
        assert config.splits == (hint < 10**9)
    forward(name, configured(case, dataclasses.replace(config, splits=1)))
    forward(name, dataclasses.replace(case, call=lambda **x: case.call(**x, max_seqlen=hint)))


@pytest.mark.full
def test_many_rows_are_found_in_two_steps():
    forward("selection_varlen", make("selection_varlen", lengths=[i % 3 for i in range(1100)]))


@pytest.mark.parametrize("skipped", [1, 300])
def test_the_first_row_may_begin_behind_the_first_key(skipped):
    case = make("selection_varlen", lengths=(skipped, 40, 0, 200))
    case.tensors |= {key: case.tensors[key][1:] for key in ("q", "cu_seqlens")}
    forward("selection_varlen", case)


@pytest.mark.parametrize("splits", [0, 1])
@pytest.mark.parametrize("edges", [[0, 150, 10, 200], [200, 150, 60, 0], [-7, 900, 3, 2**31 - 1]])
def test_offsets_that_decrease_touch_nothing_out_of_bounds(edges, splits, monkeypatch):
    """Deterministic mode fills new memory, integers with the largest value."""
    case = make("selection_varlen", lengths=(150, 0, 50))
    config = nsa_kernels.Config(16, 16, splits, 16, 1, 4, 1)
    torch.use_deterministic_algorithms(True)
    try:
        out, lse = case.call(**{**case.tensors, "cu_seqlens": ints(*edges)}, config=config)
    finally:
        torch.use_deterministic_algorithms(False)
    assert out.shape == (3, 2, 16) and lse.shape == (3, 2)
    forward("selection_varlen", configured(case, config))


def test_spans_need_no_batch_axis():
    case = make("selection_ranges", b=2, t=2, hq=8, h=2, n=90)
    spans = ints(3, 40, 30, 90).view(2, 2).expand(2, 2, 2, 2)
    case.tensors["ranges"] = spans.expand(2, 2, 2, 2, 2)
    agree(
        "selection_ranges",
        dataclasses.replace(
            case, call=lambda **x: nsa_kernels.selection_ranges(**{**x, "ranges": spans})
        ),
    )


@pytest.mark.parametrize("some", ["none", "empty", "of one query"])
def test_queries_without_a_key_have_no_gradient(some):
    """If one query has keys, the others are computed with its tile of keys, but have none."""
    case = make("selection_ranges", t=16, hq=64, n=30, spans=2)
    spans = torch.zeros_like(case.tensors["ranges"])
    spans[0, 5] = ints(3, 9) if some == "of one query" else 0
    case.tensors["ranges"] = spans[..., :0, :] if some == "none" else spans
    agree("selection_ranges", case)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_spans_at_the_edges_of_tiles(dtype):
    """Spans select whole tiles of 64 keys, half tiles, keys around an edge, and beyond all keys."""
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
    case = make("selection_ranges", t=8, n=192, dtype=dtype)
    case.tensors["ranges"] = (
        torch.tensor(edges, device=DEVICE).view(1, 8, 1, 1, 2).repeat(1, 1, 1, 2, 1)
    )
    agree("selection_ranges", case, dtype)


def test_keys_whose_queries_do_not_fit_are_planned_later(monkeypatch):
    case = make("selection_ranges", t=40, hq=1, n=150, spans=1)
    room = 2 * ranges_backward.LISTED_BYTES * 40
    monkeypatch.setattr(ranges_backward, "MAX_PLAN_BYTES", room)
    agree("selection_ranges", case)


def test_spans_far_apart():
    """Between the spans of a query lie more elements than int32 counts. The memory between them is
    reserved, but never touched."""
    if DEVICE == "cuda" and torch.cuda.mem_get_info()[0] < 12 << 30:
        pytest.skip("takes 8 GiB")
    case = make("selection_ranges", t=3, n=40)
    store = torch.empty(2**31 + 2, dtype=torch.int32, device=DEVICE)
    far = store.as_strided((1, 3, 1, 3, 2), (0, 0, 0, 2**30, 1))
    far[0, 0, 0] = ints(3, 8, 20, 25, 31, 40).view(3, 2)
    case.tensors["ranges"] = far
    agree("selection_ranges", case)


def test_the_fallback_adds_up_its_gradients_in_float32():
    """In bfloat16, sums of hundreds of terms are wrong by several per cent on a GPU."""
    case = make("packed_sdpa", t=600, hq=4, d=32, dv=32, n=64, dtype=torch.bfloat16)
    case.tensors["ranges"] = ints(0, 64).expand(1, 600, 1, 1, 2)
    agree("packed_sdpa", case, torch.bfloat16)
