"""A call with wrong arguments is refused by a sentence that names the call."""

import re

import nsa_kernels
import pytest
import torch
from cases import DEVICE, ints, make
from conformance import CALLS
from nsa_kernels import Policy

NEEDED = {
    "sliding_window": {"window": 3},
    "decode_window": {"window": 3},
    "decode_scores": {"n_blocks": 1},
    "select_blocks": {"count": 3},
}
FUNCTIONS = [name for name in CALLS if name.islower() and name.isidentifier()]
DECODING = [name for name in FUNCTIONS if name.startswith("decode_")]
OF_SPANS = ("selection_ranges", "selection_attention", "packed_sdpa")
ATTENTION = [name for name in FUNCTIONS if name not in ("select_blocks", "gated_sum")]
FLOAT64 = ("selection_attention", "packed_sdpa", "block_selection_attention", "plan_blocks")
OFF = {"policy": Policy(enabled=False)}
SPEAKS = re.compile("|".join([*nsa_kernels.__all__, "packed_sdpa"]))


def refused(name, error=ValueError, dtype=torch.float32, **changes):
    """Assert that a call refuses these arguments. A change may be a function of a tensor."""
    op = name.partition(" ")[0]
    given = {**make(name, b=2, hq=4, h=2, dtype=dtype).tensors, **NEEDED.get(op, {})}
    for key, change in changes.items():
        given[key] = change(given[key]) if callable(change) else change
    with pytest.raises(error, match=SPEAKS):
        getattr(nsa_kernels, op)(**given)


def keys_of(name):
    return make(name).keys


Q = {
    "a scalar": (ValueError, lambda q: q.new_zeros(())),
    "one axis": (ValueError, lambda q: q.new_zeros(3)),
    "an axis less": (ValueError, lambda q: q[0]),
    "no head dim": (ValueError, lambda q: q[..., :0]),
    "a wide head dim": (ValueError, lambda q: torch.cat([q, q], -1)),
    "another dtype": (TypeError, torch.Tensor.half),
    "whole numbers": (TypeError, torch.Tensor.long),
    "another device": (ValueError, lambda q: q.to("meta")),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_a_q_that_does_not_fit(name):
    for error, change in Q.values():
        for dtype in (torch.float32, torch.float64) if name in FLOAT64 else (torch.float32,):
            refused(name, error, dtype, q=change)


@pytest.mark.parametrize(
    "name", [x for x in ATTENTION if x not in ("selection_attention", "packed_sdpa")]
)
def test_a_head_dim_below_16(name):
    refused(name, **dict.fromkeys(("q", *keys_of(name)), lambda x: x[..., :8]))


def without_last(axis):
    return lambda x: x.narrow(axis, 0, x.shape[axis] - 1)


def twice(axis):
    return lambda x: torch.cat([x, x], axis)


LONG, HALF, FLOAT = torch.Tensor.long, torch.Tensor.half, torch.Tensor.float
FITS = [
    ("selection_rows", ValueError, {"k": without_last(1)}),
    ("selection_rows", ValueError, dict.fromkeys("qkv", lambda x: x.to("meta"))),
    ("selection_varlen", TypeError, {"cu_seqlens": LONG}),
    ("selection_varlen", ValueError, {"cu_seqlens": without_last(0)}),
    ("selection_varlen", ValueError, {"k": lambda k: k[None]}),
    ("selection_varlen", ValueError, {"k": without_last(0)}),
    *(
        (name, error, changes | off)
        for name, off in (*((x, {}) for x in OF_SPANS), ("selection_attention", OFF))
        for error, changes in (
            (TypeError, {"ranges": FLOAT}),
            (ValueError, {"ranges": without_last(4)}),
            (ValueError, {"ranges": lambda x: x.to("meta")}),
            (ValueError, {"v": without_last(2)}),
            (ValueError, {"k": lambda k: k.new_zeros(3)}),
            (ValueError, {"k": twice(1), "v": twice(1)}),
            (TypeError, {"v": torch.Tensor.double}),
        )
    ),
    ("block_selection_attention", TypeError, {"block_indices": LONG}),
    ("block_selection_attention", ValueError, {"q": without_last(2)}),
    ("block_selection_attention", ValueError, {"block_size": 48}),
    ("nsa_attention", ValueError, {"n_selected": 1 << 30}),
    ("nsa_attention", ValueError, {"k": without_last(1), "v": without_last(1)}),
    ("select_blocks", ValueError, {"first_position": 1000}),
    ("select_blocks", ValueError, {"block_size": 0}),
    ("select_blocks", ValueError, {"scores": lambda x: x[0]}),
    ("select_blocks", TypeError, {"scores": HALF}),
    ("select_blocks", TypeError, {"scores": LONG}),
    ("select_blocks", ValueError, {"count": 2}),
    ("decode_scores", ValueError, {"stride": 5}),
    ("decode_scores", ValueError, {"lse": without_last(1)}),
    ("decode_scores", ValueError, {"k_cmp": twice(0)}),
    *(("decode_step", ValueError, {"gates": x}) for x in (without_last(2), without_last(1))),
    ("decode_step", ValueError, {"gates": twice(0)}),
    ("decode_step", TypeError, {"gates": LONG}),
    ("gated_sum", ValueError, {"window": without_last(1)}),
    *(
        (name, ValueError, dict.fromkeys(keys_of(name), lambda x: x.repeat(1, 3, 1, 1)))
        for name in ("decode_compressed", "decode_window", "decode_scores", "decode_step")
    ),
    ("decode_selected", ValueError, {"ranges": lambda x: x[0], "cache_seqlens": ints(3, 4)}),
    ("decode_step", ValueError, {"k": lambda k: k[0], "cache_seqlens": ints(3, 4)}),
    ("decode_step", ValueError, {"q": torch.Tensor.requires_grad_}),
    *(
        (name, ValueError, {"q": change, "cache_seqlens": ints(3, 4)})
        for name in ("decode_compressed", "decode_window", "decode_selected")
        for change in (torch.Tensor.requires_grad_, twice(0))
    ),
]


@pytest.mark.parametrize(("name", "error", "changes"), FITS)
def test_arguments_that_do_not_fit(name, error, changes):
    refused(name, error, **changes)


WRONG = (2.5, "4", None, 0, -1)
SIZES = ("block", "stride", "block_size")
OF_BLOCKS = ("compressed_attention_with_scores", "decode_scores", "decode_step", "nsa_attention")
NUMBERS = [
    *((x, "window", (*WRONG, True)) for x in ("sliding_window", "decode_window", *OF_BLOCKS[2:])),
    *((name, size, WRONG) for name in OF_BLOCKS for size in SIZES),
    *(("compressed_attention", size, WRONG) for size in SIZES[:2]),
    *(("select_blocks", x, WRONG[:3]) for x in ("block_size", "first_position", "local", "count")),
    ("decode_scores", "n_blocks", WRONG[:3]),
    *(
        (name, "sm_scale", (0.0, -1.0, float("nan"), float("inf"), "big"))
        for name in ATTENTION
        if name != "plan_blocks"
    ),
    *((x, "selected_len", (-1, 2.5, "70", True)) for x in (*OF_SPANS[1:], "decode_selected")),
    *(
        (name, "cu_seqlens", ([0, 2, 4], torch.tensor(3).int()))
        for name in ("sliding_window", "block_selection_attention", "selection_varlen")
    ),
]


@pytest.mark.parametrize(("name", "key", "values"), NUMBERS)
def test_numbers_that_are_none(name, key, values):
    for value in values:
        for more in ({}, OFF) if name == "selection_attention" else ({},):
            refused(name, (TypeError, ValueError), **{key: value}, **more)


@pytest.mark.parametrize(
    ("queries", "edges", "edges_of_keys", "error"),
    [
        (4, None, [0, 6], ValueError),
        (4, [0, 4], [0, 2, 6], ValueError),
        (4, [0, 4], None, ValueError),
        (4, [0, 4], [0.0, 6.0], TypeError),
        (6, [0, 2, 6], [0, 2, 6], ValueError),  # the keys want a gradient
    ],
)
def test_queries_and_keys_that_do_not_fit(queries, edges, edges_of_keys, error):
    given = make("nsa_attention", t=6).tensors
    given = {key: x[:, -queries:] if key in ("q", "gates") else x for key, x in given.items()}
    for key, values in (("cu_seqlens", edges), ("cu_seqlens_k", edges_of_keys)):
        if values is not None:
            x = torch.tensor(values, device=DEVICE)
            given[key] = x if x.is_floating_point() else x.int()
    given["k"].requires_grad_(queries == 6)
    with pytest.raises(error, match=r"nsa_attention: .*cu_seqlens_k"):
        nsa_kernels.nsa_attention(**given)


def test_a_config_is_refused_where_a_gradient_is_wanted():
    config = nsa_kernels.Config(16, 16, 1, 0, 1, 4, 2)
    refused("selection_ranges", config=config, q=torch.Tensor.requires_grad_)


LENGTHS = [
    (torch.zeros(2), TypeError),
    (torch.zeros(2).long(), TypeError),
    ([1, 2], TypeError),
    (torch.zeros(3).int(), ValueError),
    (torch.zeros(2, 1).int(), ValueError),
    (torch.zeros(2).int().to("meta"), ValueError),
]
TABLES = [
    (torch.zeros(2, 3), TypeError),
    ([[1], [2]], TypeError),
    (torch.zeros(3, 3).int(), ValueError),
    (torch.zeros(6).int(), ValueError),
    (torch.zeros(2, 0).int(), ValueError),
]
PAGED = ("decode_step", "decode_window", "decode_selected")


def here(x):
    return x.to(DEVICE) if torch.is_tensor(x) and not x.is_meta else x


@pytest.mark.parametrize("name", DECODING)
def test_lengths_of_a_cache_that_do_not_fit(name):
    for lengths, error in LENGTHS:
        refused(name, error, cache_seqlens=here(lengths))


@pytest.mark.parametrize("name", PAGED)
def test_tables_of_pages_that_do_not_fit(name):
    for table, error in TABLES:
        refused(name, error, cache_seqlens=ints(3, 4), block_table=here(table))
    refused(name, block_table=torch.zeros(2, 3).int().to(DEVICE))  # without lengths


@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize(("page", "pages"), [(0, 3), (1 << 20, 1 << 10)])
def test_a_room_that_cannot_be_counted(name, page, pages):
    heads = 2 if name == "decode_step" else 1
    pool = torch.zeros(1, 1, min(page, 1), 16, device=DEVICE).expand(1, heads, page, 16)
    given = {"k": pool, "v": pool, "cache_seqlens": ints(3, 4)}
    given["block_table"] = ints(0).view(1, 1).expand(2, pages)
    refused(name, **given)
