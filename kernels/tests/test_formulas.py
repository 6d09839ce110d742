"""Each family's results and gradients against its formula in float64, over shapes and dtypes."""

import nsa_kernels
import pytest
import torch
from cases import DEVICE, DTYPES, HERE, agree, check, doubled, make, packed
from hypothesis import example, given, settings
from hypothesis import strategies as st
from nsa_kernels.band.config import value_columns
from nsa_kernels.selection.ranges.naive import naive_ranges

ROWS = [
    {"b": 2, "hq": 4, "n": 5},
    {"b": 3, "hq": 8, "d": 64, "dv": 64, "n": 64},
    {"b": 2, "hq": 17, "d": 80, "dv": 48, "n": 130},
    {"hq": 1, "d": 128, "dv": 64, "n": 300},
    {"b": 2, "hq": 3, "d": 256, "dv": 256, "n": 33},
    {"b": 2, "d": 24, "dv": 200, "n": 1},
    {"hq": 70, "d": 32, "dv": 32, "n": 40},
    {"b": 2, "hq": 3, "dv": 32, "n": 0},
]
LENGTHS = [(5,), (0,), (0, 0, 0), (1, 0, 64, 65, 0), (700, 3, 0, 300), (0, 2000), (1,) * 40]
SHAPES = {
    "selection_rows": ROWS,
    "selection_rows_per_head": ROWS,
    "selection_varlen": [{"hq": 4, "d": 32, "dv": 48, "lengths": lengths} for lengths in LENGTHS],
    "selection_ranges": [
        {"b": 2, "t": 5, "hq": 6, "h": 2, "dv": 24, "n": 70, "spans": 3},
        {"t": 40, "hq": 1, "d": 32, "dv": 32, "n": 150, "spans": 1},
        {"t": 3, "hq": 34, "h": 2, "d": 64, "n": 40, "spans": 5},
        {"t": 2, "hq": 8, "d": 40, "dv": 24, "n": 150, "spans": 90},  # a search orders spans
        {"t": 16, "hq": 64, "n": 30, "spans": 2},  # the queries that see a tile of keys are split
        {"n": 1},
        {"n": 0},
    ],
    "block_selection_attention": [
        {"t": 70, "hq": 4, "h": 2, "blocks": 4},
        {"b": 2, "t": 40, "hq": 6, "h": 2, "dv": 24, "blocks": 3},
        {"t": 33, "hq": 1, "d": 40, "blocks": 17},  # more blocks than a kernel unrolls
        {"t": 70, "hq": 64, "blocks": 2, "block_size": 64},
    ],
    "plan_blocks": [{"t": 36, "hq": 4, "h": 2, "blocks": 33}],
    "sliding_window": [
        {"t": 1, "hq": 1, "window": 1},
        {"b": 2, "t": 70, "hq": 4, "h": 2, "d": 32, "dv": 48, "window": 1},
        {"t": 140, "hq": 3, "d": 64, "dv": 64, "window": 64},
        {"t": 150, "h": 2, "d": 80, "dv": 40, "window": 129},
        {"t": 90, "window": 2**31 - 1},  # one more wraps round in int32
        {"t": 60, "d": 256, "dv": 256, "window": 2**63 - 1},
        {"t": 60, "hq": 16, "window": 20},  # the queries that see a tile of keys are split
    ],
    "compressed_attention": [
        {"t": 32, "hq": 1, "block": 32, "stride": 16},
        {"t": 31, "block": 32, "stride": 16},
        {"b": 2, "t": 130, "hq": 4, "h": 2, "d": 32, "dv": 48, "block": 32, "stride": 16},
        {"t": 150, "hq": 3, "d": 64, "dv": 64, "block": 8, "stride": 4},
        {"t": 100, "d": 80, "dv": 40, "block": 7, "stride": 7},
        {"t": 70, "hq": 16, "block": 32, "stride": 16},  # split in the same way
    ],
    "compressed_attention_with_scores": [
        {"b": 2, "t": 150, "hq": 4, "h": 2, "d": 32, "block": 32, "stride": 16, "block_size": 64},
        {"t": 70, "block": 8, "stride": 4, "block_size": 32},
        {"t": 50, "block": 32, "stride": 16},
    ],
    "nsa_attention": [
        {"t": 90, "hq": 4, "h": 2, "block": 8, "stride": 4, "n_selected": 4, "window": 20}
    ],
}


@pytest.mark.parametrize("dtype", HERE)
@pytest.mark.parametrize(("name", "sizes"), [(name, x) for name in SHAPES for x in SHAPES[name]])
def test_shapes(name, sizes, dtype):
    agree(name, make(name, **{"t": 1, **sizes}, dtype=dtype), dtype)


def sizes_of(**strategies):
    return st.fixed_dictionaries(strategies)


few = st.integers(1, 5)


def lengths(most):
    return st.lists(st.integers(0, most), min_size=1, max_size=4).filter(lambda x: sum(x) > 0)


heads = {"hq": st.sampled_from([2, 4, 6]), "h": st.sampled_from([1, 2])}
PACKED = {
    "block_selection_attention": (lengths(90), sizes_of(**heads, blocks=few)),
    "sliding_window": (
        lengths(90),
        sizes_of(hq=st.sampled_from([2, 16]), window=st.integers(1, 100) | st.just(2**31)),
    ),
    "compressed_attention": (
        lengths(80),
        sizes_of(hq=st.sampled_from([2, 16]), block=st.just(32), stride=st.just(16)),
    ),
    "nsa_attention": (
        lengths(45),
        st.sampled_from([(2, 2), (4, 2), (12, 4), (8, 8), (24, 8)]).flatmap(
            lambda overlap: sizes_of(
                block=st.just(overlap[0]),
                stride=st.just(overlap[1]),
                block_size=st.sampled_from([16, 32]),
                n_selected=st.integers(3, 6),
                window=st.integers(1, 40),
                hq=st.integers(1, 3),
                dv=st.just(24),
            )
        ),
    ),
}


@pytest.mark.parametrize("name", PACKED)
@settings(max_examples=20 if DEVICE == "cuda" else 2, deadline=None)
@given(data=st.data(), tail=st.sampled_from([0, 7]))
def test_packed_sequences(name, data, tail):
    of_lengths, of_sizes = PACKED[name]
    agree(name, packed(name, data.draw(of_lengths), tail=tail, **data.draw(of_sizes)))


ODD = {
    "sliding_window": {"b": 2, "t": 64, "hq": 4, "window": 16},
    "block_selection_attention": {"t": 80, "hq": 4, "blocks": 4},
}


def odd(x):
    """Return a copy of x whose rows are not all at addresses that asynchronous copies can read."""
    room = x.new_zeros(*x.shape[:-1], x.shape[-1] + 1)
    return room[..., 1:].copy_(x)


@pytest.mark.parametrize("narrower", [2, 4])
@pytest.mark.parametrize("name", ODD)
def test_narrow_values_at_odd_addresses(name, narrower):
    """Were tiles of values narrower than tiles of keys, code of ptxas 12.8 would read a register
    that was never written."""
    assert value_columns(64, 64 // narrower, 2) == 64
    for d in (64, 128) if DEVICE == "cuda" else (64,):
        case = make(name, **ODD[name], d=d, dv=d // narrower, dtype=torch.bfloat16)
        case.tensors |= {key: odd(case.tensors[key]) for key in case.leaves}
        agree(name, case, torch.bfloat16)


span = st.tuples(st.integers(-20, 180), st.integers(-20, 180))


@settings(max_examples=40, deadline=None)
@given(
    spans=st.lists(span, max_size=9),
    dtype=st.sampled_from(DTYPES),
    integers=st.sampled_from([torch.int32, torch.int64]),
    scale=st.floats(1e-3, 3.0),
    hint=st.sampled_from([None, 150, 1 << 40]),
)
@example([(7, 3), (-9, -1), (200, 300)], torch.float32, torch.int32, 0.25, None)
@example([(0, 150), (10, 20), (10, 20), (20, 30)], torch.float32, torch.int64, 0.25, 150)
def test_any_spans(spans, dtype, integers, scale, hint):
    case = make("selection_ranges", t=1, n=150, dtype=dtype)
    of = torch.tensor(spans, dtype=integers, device=DEVICE).view(1, 1, 1, -1, 2)
    tensors = {**case.tensors, "ranges": of}
    want = naive_ranges(**doubled(tensors), sm_scale=scale)
    got = nsa_kernels.selection_ranges(**tensors, sm_scale=scale, selected_len=hint)
    check("selection_ranges", got, want, dtype)
    for policy in (nsa_kernels.Policy(), nsa_kernels.Policy(enabled=False)):
        options = {"policy": policy, "sm_scale": scale, "selected_len": hint}
        out = nsa_kernels.selection_attention(**tensors, **options)
        check("selection_attention", (out,), want[:1], dtype)
