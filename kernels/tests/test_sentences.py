"""Wrong arguments are refused at the call that is wrong, by a sentence that names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nsa_kernels
import pytest
import torch
from cases import DEVICE, ints, make
from nsa_kernels import Policy

NEEDED: dict[str, dict[str, Any]] = {
    "sliding_window": {"window": 3},
    "decode_window": {"window": 3},
    "decode_scores": {"n_blocks": 1},
    "select_blocks": {"count": 3},
}
DECODING = ("decode_compressed", "decode_window", "decode_selected", "decode_scores", "decode_step")
ATTENTION = (
    "selection_rows",
    "selection_rows_per_head",
    "selection_varlen",
    "selection_ranges",
    "selection_attention",
    "packed_sdpa",
    "block_selection_attention",
    "plan_blocks",
    "sliding_window",
    "compressed_attention",
    "compressed_attention_with_scores",
    "nsa_attention",
    *DECODING,
)
FLOAT64 = ("selection_attention", "packed_sdpa", "block_selection_attention", "plan_blocks")
OFF = {"policy": Policy(enabled=False)}
Change = Callable[[torch.Tensor], torch.Tensor]


def refused(
    name: str, error: Any, message: str, dtype: torch.dtype = torch.float32, **changes: Any
) -> None:
    """Assert that a call says what is wrong with these arguments. A function changes a tensor."""
    op = name.partition(" ")[0]
    given = {**make(name, b=2, hq=4, h=2, dtype=dtype).tensors, **NEEDED.get(op, {})}
    for key, change in changes.items():
        given[key] = change(given[key]) if callable(change) else change
    with pytest.raises(error, match=message):
        getattr(nsa_kernels, op)(**given)


def keys_of(name: str) -> tuple[str, ...]:
    return make(name).keys


Q: dict[str, tuple[Any, str, Change]] = {
    "a scalar": (ValueError, "expected q|head dim", lambda q: q.new_zeros(())),
    "one axis": (ValueError, "expected q|head dim", lambda q: q.new_zeros(3)),
    "an axis less": (ValueError, "expected q", lambda q: q[0]),
    "no head dim": (ValueError, "expected q|head dim", lambda q: q[..., :0]),
    "a wide head dim": (ValueError, "expected q|head dim", lambda q: torch.cat([q, q], -1)),
    "another dtype": (TypeError, "must share one dtype", torch.Tensor.half),
    "whole numbers": (TypeError, "dtype", torch.Tensor.long),
    "another device": (ValueError, "device|on meta", lambda q: q.to("meta")),
}


@pytest.mark.parametrize("wrong", Q)
@pytest.mark.parametrize("name", ATTENTION)
def test_a_q_that_does_not_fit(name, wrong) -> None:
    error, message, change = Q[wrong]
    for dtype in (torch.float32, torch.float64) if name in FLOAT64 else (torch.float32,):
        refused(name, error, message, dtype, q=change)


@pytest.mark.parametrize(
    "name", [x for x in ATTENTION if x not in ("selection_attention", "packed_sdpa")]
)
def test_a_head_dim_below_16(name) -> None:
    tensors = dict.fromkeys(("q", *keys_of(name)), lambda x: x[..., :8])
    refused(name, ValueError, r"16\.\.256", **tensors)


def without_last(axis: int) -> Change:
    return lambda x: x.narrow(axis, 0, x.shape[axis] - 1)


def twice(axis: int) -> Change:
    return lambda x: torch.cat([x, x], axis)


SPANS = "int32 or int64"
FITS: list[tuple[str, Any, str, dict[str, Any]]] = [
    ("selection_rows", ValueError, "expected q", {"k": without_last(1)}),
    ("selection_varlen", TypeError, "int32", {"cu_seqlens": torch.Tensor.long}),
    ("selection_varlen", ValueError, "cu_seqlens", {"cu_seqlens": without_last(0)}),
    ("selection_varlen", ValueError, "expected q", {"k": lambda k: k[None]}),
    ("selection_varlen", ValueError, "expected q", {"k": without_last(0)}),
    *(
        (name, error, message, changes | off)
        for name, off in (
            ("selection_ranges", {}),
            ("selection_attention", {}),
            ("selection_attention", OFF),
            ("packed_sdpa", {}),
        )
        for error, message, changes in (
            (TypeError, SPANS, {"ranges": torch.Tensor.float}),
            (ValueError, "expected q", {"ranges": without_last(4)}),
            (ValueError, "ranges is on|device", {"ranges": lambda x: x.to("meta")}),
            (ValueError, "expected q", {"v": without_last(2)}),
            (ValueError, "expected q|head dim", {"k": lambda k: k.new_zeros(3)}),
            (ValueError, "expected q", {"k": twice(1), "v": twice(1)}),
            (TypeError, "must share one dtype", {"v": torch.Tensor.double}),
        )
    ),
    ("block_selection_attention", TypeError, "int32", {"block_indices": torch.Tensor.long}),
    ("block_selection_attention", ValueError, "multiple", {"q": without_last(2)}),
    ("block_selection_attention", ValueError, "block_size", {"block_size": 48}),
    ("nsa_attention", ValueError, "n_selected must be at most 65536", {"n_selected": 1 << 30}),
    (
        "nsa_attention",
        ValueError,
        r"expected q \[B,Tq,HQ,D\]",
        {"k": without_last(1), "v": without_last(1)},
    ),
    ("select_blocks", ValueError, "do not hold 1004 tokens", {"first_position": 1000}),
    ("select_blocks", ValueError, "block_size must be a whole number", {"block_size": 0}),
    ("select_blocks", ValueError, "expected scores", {"scores": lambda x: x[0]}),
    ("select_blocks", TypeError, "must be float32", {"scores": torch.Tensor.half}),
    ("select_blocks", TypeError, "must be float32", {"scores": torch.Tensor.long}),
    ("select_blocks", ValueError, "first", {"count": 2}),
    ("decode_scores", ValueError, "must divide", {"stride": 5}),
    ("decode_scores", ValueError, "lse", {"lse": without_last(1)}),
    ("decode_scores", ValueError, "expected q", {"k_cmp": twice(0)}),
    ("decode_step", ValueError, r"gates \[B,HQ,3\]", {"gates": without_last(2)}),
    ("decode_step", ValueError, r"gates \[B,HQ,3\]", {"gates": without_last(1)}),
    ("decode_step", ValueError, r"gates \[B,HQ,3\]", {"gates": twice(0)}),
    ("decode_step", TypeError, "gates must be of a floating dtype", {"gates": torch.Tensor.long}),
    ("gated_sum", ValueError, "three branches", {"window": without_last(1)}),
    *(
        (
            name,
            ValueError,
            "multiple of H",
            dict.fromkeys(keys_of(name), lambda x: x.repeat(1, 3, 1, 1)),
        )
        for name in ("decode_compressed", "decode_window", "decode_scores", "decode_step")
    ),
    (
        "decode_selected",
        ValueError,
        r"expected ranges \[B,H,n,2\]",
        {"ranges": lambda x: x[0], "cache_seqlens": ints(3, 4)},
    ),
]


@pytest.mark.parametrize(("name", "error", "message", "changes"), FITS)
def test_arguments_that_do_not_fit(name, error, message, changes) -> None:
    refused(name, error, message, **changes)


WRONG = (2.5, "4", None, 0, -1)
NUMBERS = [
    *(
        (name, "window", (*WRONG, True))
        for name in ("sliding_window", "decode_window", "decode_step", "nsa_attention")
    ),
    *(
        (name, size, WRONG)
        for name in (
            "compressed_attention_with_scores",
            "decode_scores",
            "decode_step",
            "nsa_attention",
        )
        for size in ("block", "stride", "block_size")
    ),
    *(("compressed_attention", size, WRONG) for size in ("block", "stride")),
    *(
        ("select_blocks", size, WRONG[:3])
        for size in ("block_size", "first_position", "local", "count")
    ),
    ("decode_scores", "n_blocks", WRONG[:3]),
    *(
        (name, "sm_scale", (0.0, -1.0, float("nan"), float("inf"), "big"))
        for name in ATTENTION
        if name != "plan_blocks"
    ),
    *(
        (name, "selected_len", (-1, 2.5, "70", True))
        for name in ("selection_attention", "packed_sdpa", "decode_selected")
    ),
    *(
        (name, "cu_seqlens", ([0, 2, 4], torch.tensor(3).int()))
        for name in ("sliding_window", "block_selection_attention", "selection_varlen")
    ),
]


@pytest.mark.parametrize(("name", "key", "values"), NUMBERS)
def test_numbers_that_are_none(name, key, values) -> None:
    message = key if key == "cu_seqlens" else f"{key} must be"
    if key in ("block", "stride", "block_size"):
        message += "|stride must divide"
    for value in values:
        for more in ({}, OFF) if name == "selection_attention" else ({},):
            refused(name, (TypeError, ValueError), message, **{key: value}, **more)


@pytest.mark.parametrize(
    ("queries", "edges", "edges_of_keys", "error", "message"),
    [
        (4, None, [0, 6], ValueError, "cu_seqlens_k goes with cu_seqlens"),
        (4, [0, 4], [0, 2, 6], ValueError, "cu_seqlens and cu_seqlens_k differ in length"),
        (4, [0, 4], None, ValueError, "q has 4 tokens and k 6; packed .* cu_seqlens_k"),
        (4, [0, 4], [0.0, 6.0], TypeError, "cu_seqlens_k must be an int32 tensor"),
        (6, [0, 2, 6], [0, 2, 6], ValueError, "leave out cu_seqlens_k"),
    ],
)
def test_queries_and_keys_that_do_not_fit(queries, edges, edges_of_keys, error, message) -> None:
    given = make("nsa_attention", t=6).tensors
    given = {key: x[:, -queries:] if key in ("q", "gates") else x for key, x in given.items()}
    for key, values in (("cu_seqlens", edges), ("cu_seqlens_k", edges_of_keys)):
        if values is not None:
            x = torch.tensor(values, device=DEVICE)
            given[key] = x if x.is_floating_point() else x.int()
    given["k"].requires_grad_(queries == 6)
    with pytest.raises(error, match=f"nsa_attention: .*{message}"):
        nsa_kernels.nsa_attention(**given)


def test_a_config_is_refused_where_a_gradient_is_wanted() -> None:
    config = nsa_kernels.Config(16, 16, 1, 0, 1, 4, 2)
    refused(
        "selection_ranges",
        ValueError,
        "has no backward",
        config=config,
        q=torch.Tensor.requires_grad_,
    )


@pytest.mark.parametrize("name", ["decode_compressed", "decode_window", "decode_selected"])
def test_a_gradient_is_not_lost_where_lengths_differ(name) -> None:
    given = {"q": torch.Tensor.requires_grad_, "cache_seqlens": ints(3, 4)}
    refused(name, ValueError, f"{name}: has no backward", **given)
    refused(name, ValueError, rf"{name}: expected .* got \(4, 4, 16\), \(2, ", q=twice(0))


@pytest.mark.skipif(DEVICE == "cuda", reason="the CPU is where kernels cannot run only there")
def test_blocks_are_selected_on_a_gpu_only(monkeypatch) -> None:
    monkeypatch.setattr("nsa_kernels.launch.checks.CPU_ALLOWED", False)
    refused("select_blocks", ValueError, "needs CUDA tensors")


LENGTHS = [
    (torch.zeros(2), TypeError, "must be an int32 tensor; got torch.float32"),
    (torch.zeros(2).long(), TypeError, "must be an int32 tensor; got torch.int64"),
    ([1, 2], TypeError, "must be an int32 tensor; got list"),
    (torch.zeros(3).int(), ValueError, r"must be \[2\], one number an entry"),
    (torch.zeros(2, 1).int(), ValueError, r"must be \[2\], one number an entry"),
    (torch.zeros(2).int().to("meta"), ValueError, ".* on meta"),
]
TABLES = [
    (torch.zeros(2, 3), TypeError, "must be an int32 tensor; got torch.float"),
    ([[1], [2]], TypeError, "must be an int32 tensor; got list"),
    (torch.zeros(3, 3).int(), ValueError, r"must be \[2, pages of an entry\]"),
    (torch.zeros(6).int(), ValueError, r"must be \[2, pages of an entry\]"),
    (torch.zeros(2, 0).int(), ValueError, r"must be .* got \[2, 0\]"),
]


def here(x: Any) -> Any:
    return x.to(DEVICE) if torch.is_tensor(x) and not x.is_meta else x


@pytest.mark.parametrize("name", DECODING)
@pytest.mark.parametrize(("lengths", "error", "message"), LENGTHS)
def test_lengths_of_a_cache_that_do_not_fit(name, lengths, error, message) -> None:
    refused(name, error, f"{name}: cache_seqlens {message}", cache_seqlens=here(lengths))


PAGED = ("decode_step", "decode_window", "decode_selected")


@pytest.mark.parametrize("name", PAGED)
def test_tables_of_pages_that_do_not_fit(name) -> None:
    for table, error, message in TABLES:
        given = {"cache_seqlens": ints(3, 4), "block_table": here(table)}
        refused(name, error, f"{name}: block_table {message}", **given)
    given = {"block_table": torch.zeros(2, 3).int().to(DEVICE)}
    refused(name, ValueError, f"{name}: a block_table goes with cache_seqlens", **given)


@pytest.mark.parametrize("name", PAGED)
@pytest.mark.parametrize(("page", "pages"), [(0, 3), (1 << 20, 1 << 10)])
def test_a_room_that_cannot_be_counted(name, page, pages) -> None:
    heads = 2 if name == "decode_step" else 1
    pool = torch.zeros(1, 1, min(page, 1), 16, device=DEVICE).expand(1, heads, page, 16)
    given = {"k": pool, "v": pool, "cache_seqlens": ints(3, 4)}
    given["block_table"] = ints(0).view(1, 1).expand(2, pages)
    refused(name, ValueError, f"{name}: a cache has room for 1 to .*; got {page * pages}$", **given)


def test_a_pool_without_its_axes() -> None:
    given = {"k": lambda k: k[0], "cache_seqlens": ints(3, 4), "block_table": ints(0, 1).view(2, 1)}
    refused("decode_step", ValueError, r"decode_step: expected .* k \[pages,H,page,D\]", **given)
