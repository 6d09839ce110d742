"""Adapters of public libraries: what they hand over, and what they say where a library is not as it
was. The libraries themselves run in `tests/gpu`; here plain PyTorch stands in for their kernels."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from nsabench import Unsupported, ops, registry
from nsabench.implementations import torch_attention
from nsabench.implementations.libraries import (
    _calls,
    _catalogue,
    fla,
    flash_attn_4,
    flashinfer,
    nsa_pytorch,
)
from nsabench.implementations.libraries._catalogue import FLA
from nsabench.model.vocabulary import DType, Kind, Role
from nsabench.registry.package import Package
from tests.implementations import libraries
from tests.implementations.stand_ins import assert_right, drawn, registered


@pytest.fixture
def stand_ins(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def function(package: Package, where: str, *takes: str) -> Callable[..., Any]:
        found = libraries.named(where)
        if "." not in where.partition(":")[2]:
            _calls.refuse_changed(package, where, found, ())
        return found

    monkeypatch.setattr(_calls, "find_function", function)
    monkeypatch.setattr(_calls, "refuse_float32", lambda *_: None)
    monkeypatch.setattr(torch_attention, "check_flash", lambda *_: None)
    yield
    flashinfer.plans.clear()


BLOCKS = {"B": 1, "T": 128, "HQ": 4, "H": 2, "D": 64, "S": 3, "block_size": 32}


OF_FLA = {"T": 70, "HQ": 16, "H": 1, "D": 16, "S": 2, "block_size": 16}


@pytest.mark.parametrize(
    ("name", "distribution", "sizes"),
    [
        *(
            (name, distribution, sizes)
            for name in ("nsa_triton", "fsa", "cudnn_nsa", "flashinfer_pages")
            for distribution, sizes in (
                *(("random", {}), ("random", {"B": 2, "T": 75}), ("packed", {})),
                *(("packed", {"T": 75}), ("skewed", {}), ("skewed", {"B": 2, "T": 75})),
            )
        ),
        ("nsa_pytorch", "local", {}),  # its own block is given to no kernel that adds it
        ("nsa_pytorch", "local", {"B": 2, "T": 75}),
        ("flashinfer_prefill", "packed", {"T": 75}),
        ("fla", "random", OF_FLA),
        ("fla", "packed", OF_FLA),
    ],
)
def test_chosen_blocks_are_handed_over(
    stand_ins: None, name: str, distribution: str, sizes: dict[str, int]
) -> None:
    inputs = drawn("selection_blocks", distribution, seed=5, **{**BLOCKS, **sizes})
    assert_right(registered("selection_blocks", name), "selection_blocks", inputs)


@pytest.mark.parametrize(
    ("distribution", "changed", "says"),
    [
        ("packed", {}, "no packed sequences"),
        ("random", {"HQ": 6}, "groups of 1, 2"),
        ("random", {"D": 256}, "128 at most"),
        ("random", {"block_size": 24}, "blocks of 16, 32"),
    ],
)
def test_nsa_pytorch_declines_what_its_kernels_are_not_for(
    stand_ins: None, distribution: str, changed: dict[str, int], says: str
) -> None:
    inputs = drawn("selection_blocks", distribution, **{**BLOCKS, "T": 40, **changed})
    with pytest.raises(Unsupported, match=says):
        nsa_pytorch.nsa_pytorch(*inputs.tensors.values(), **inputs.options)


VARIANT = {"B": 1, "T": 90, "HQ": 16, "H": 1, "D": 16, "block_size": 16, "n_selected": 4}
WINDOW = {"block": 16, "stride": 16, "window": 7}


@pytest.mark.parametrize("distribution", ["dense", "packed"])
@pytest.mark.parametrize("op", ["nsa_without_window", "nsa_attention"])
def test_fla_is_given_gates_and_chooses_blocks(stand_ins: None, op: str, distribution: str) -> None:
    sizes = VARIANT | ({"B": 2, "T": 45} if distribution == "packed" else {})
    inputs = drawn(op, distribution, **sizes, **(WINDOW if op == "nsa_attention" else {}))
    assert_right(registered(op, "fla_whole"), op, inputs)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"n_selected": 5}, "chooses 1, 2, 4, … blocks a query, not 5"),
        (
            {"block_size": 48, "block": 48, "stride": 48},
            "chooses blocks of 16, 32, 64, … tokens, not of 48",
        ),
        ({"n_selected": 16}, "at most 8 blocks of 16"),
        ({"H": 2}, "groups of 16"),
        ({"block": 32}, "not blocks of 32 tokens every 16"),
    ],
)
def test_fla_declines_what_its_whole_is_not(
    stand_ins: None, changed: dict[str, int], says: str
) -> None:
    inputs = drawn("nsa_attention", "dense", **VARIANT | WINDOW | changed)
    with pytest.raises(Unsupported, match=says):
        fla.fla_whole_with_window(*inputs.tensors.values(), **inputs.options)


def test_the_window_of_fla_scales_by_itself(stand_ins: None) -> None:
    inputs = drawn("nsa_attention", "dense", **VARIANT | WINDOW)
    with pytest.raises(Unsupported, match="scales by 1/sqrt"):
        fla.fla_whole_with_window(*inputs.tensors.values(), **inputs.options | {"sm_scale": 0.3})


SPANS = {"B": 2, "S": 3, "G": 2, "H": 4, "D": 64, "S_kv": 200, "n_spans": 3, "L": 96}


OF_SPANS = ("disjoint", "mixed", "touching", "overlapping", "unsorted", "reversed")


@pytest.mark.parametrize(
    ("name", "distribution"),
    [*(("flashinfer_pages", d) for d in OF_SPANS), ("flashinfer_prefill", "mixed")],
)
def test_spans_are_pages_of_each_key_once(stand_ins: None, name: str, distribution: str) -> None:
    call = registered("selection_ranges", name)
    for changed in ({"S": 2}, {"S": 1, "L": 97}):
        inputs = drawn("selection_ranges", distribution, **{**SPANS, **changed})
        for _ in range(2):  # the plan of one query a sequence is kept, and the table written anew
            assert_right(call, "selection_ranges", inputs)


@pytest.mark.parametrize("name", ["flashinfer_pages", "flashinfer_prefill"])
@pytest.mark.parametrize("distribution", ["empty_rows", "all_empty"])
def test_flashinfer_declines_a_query_without_keys(
    stand_ins: None, distribution: str, name: str
) -> None:
    inputs = drawn("selection_ranges", distribution, **SPANS)
    with pytest.raises(Unsupported, match="no query without keys"):
        registered("selection_ranges", name)(*inputs.tensors.values(), **inputs.options)


CACHE = {"B": 2, "HQ": 8, "H": 2, "D": 64, "block_size": 64, "n_selected": 4}


@pytest.mark.parametrize("S", [256, 512, 300, 130, 64])
def test_blocks_of_a_cache_are_pages(stand_ins: None, S: int) -> None:
    inputs = drawn("decode_selected", ops.get("decode_selected").distributions[0], S=S, **CACHE)
    pages = registered("decode_selected", "flashinfer_pages")
    for _ in range(2):  # the plan is kept, and the table written anew
        assert_right(pages, "decode_selected", inputs)
    cut_off = pytest.raises(Unsupported, match="a partial block")
    with nullcontext() if S in (256, 512) else cut_off:
        assert_right(flash_attn_4.flash_attn_4_pages, "decode_selected", inputs)


@pytest.mark.parametrize("S", [256, 300, 30])
def test_a_whole_cache_is_pages(stand_ins: None, S: int) -> None:
    sizes = {"B": 2, "HQ": 8, "H": 2, "D": 64, "S": S}
    for op, more in (("decode_dense", {}), ("decode_window", {"window": 20})):
        inputs = drawn(op, ops.get(op).distributions[0], **sizes, **more)
        assert_right(registered(op, "flashinfer"), op, inputs)


BAND = {"B": 2, "T": 40, "HQ": 4, "H": 2, "D": 16}
ATTENDED = {
    "causal_attention": ({}, ("dense", "packed")),
    "sliding_window": ({"window": 9}, ("dense", "packed")),
    "compressed": ({"block": 8, "stride": 4}, ("dense",)),
}


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_4"])
@pytest.mark.parametrize("op", ATTENDED)
def test_flash_attention_is_given_sequences_and_windows(
    stand_ins: None, op: str, name: str
) -> None:
    sizes, distributions = ATTENDED[op]
    for distribution in distributions:
        inputs = drawn(op, distribution, **BAND, **sizes)
        assert_right(registered(op, name), op, inputs)


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_4"])
def test_flash_attention_is_given_compressed_keys_in_no_packed_form(
    stand_ins: None, name: str
) -> None:
    inputs = drawn("compressed", "packed", **BAND, block=8, stride=4)
    with pytest.raises(Unsupported, match="packed"):
        assert_right(registered("compressed", name), "compressed", inputs)


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_4"])
@pytest.mark.parametrize("distribution", ["spread", "empty_rows", "all_empty"])
def test_flash_attention_is_given_rows(stand_ins: None, name: str, distribution: str) -> None:
    inputs = drawn("selection_varlen", distribution, N=6, H=3, D=16, L=20)
    assert_right(registered("selection_varlen", name), "selection_varlen", inputs)


@pytest.mark.parametrize(
    "name", ["flash_attn", "flash_attn_unsplit", "flash_attn_4", "flash_attn_4_splits"]
)
@pytest.mark.parametrize("op", ["decode_dense", "decode_window", "decode_compressed"])
def test_flash_attention_is_given_a_cache(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, op: str, name: str
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    more = {"decode_dense": {}, "decode_window": {"window": 20}}
    sizes = more.get(op, {"block": 8, "stride": 4})
    inputs = drawn(op, "random", B=2, HQ=8, H=2, D=16, S=50, **sizes)
    assert_right(registered(op, name), op, inputs)


@pytest.mark.parametrize(
    ("name", "splits"),
    [("flash_attn", 0), ("flash_attn_unsplit", 1), ("flash_attn_4", 1), ("flash_attn_4_splits", 0)],
)
def test_it_is_said_whether_keys_are_split(
    stand_ins: None, monkeypatch: pytest.MonkeyPatch, name: str, splits: int
) -> None:
    told = []

    def attend(q: torch.Tensor, *given: Any, num_splits: int, **_: Any) -> torch.Tensor:
        told.append(num_splits)
        return q

    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (10, 0))
    for function_name in ("flash_attn_func", "flash_attn_with_kvcache"):
        monkeypatch.setitem(libraries.STAND_INS, function_name, attend)
    inputs = drawn("decode_dense", "random", B=1, HQ=4, H=2, D=16, S=20)
    registered("decode_dense", name)(*inputs.tensors.values(), **inputs.options)
    assert told == [splits]


def test_one_that_is_not_installed_says_how_to_install_it() -> None:
    for item in registry.load():
        if item.package is None or item.package.version:
            continue
        inputs = smallest(item.computes or item.op)
        with pytest.raises(Unsupported) as raised:
            item.call(*inputs.tensors.values(), **inputs.options)
        assert item.package.install in str(raised.value)


def smallest(op: str) -> ops.Inputs:
    contract = ops.get(op)
    text = contract.check_shapes["cpu"][0]
    sizes = {n: int(v) for n, v in (part.split("=") for part in text.split(","))}
    return drawn(op, contract.distributions[0], dtype=DType.BFLOAT16, seed=0, **sizes)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Iterator[types.ModuleType]:
    """A module `fla` with nothing in it, installed in version 9."""
    _calls.find_function.cache_clear()
    module = types.ModuleType("fla.ops.nsa.parallel")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Package, "version", "9.0")
    monkeypatch.setattr(_calls.importlib, "import_module", lambda name: module)
    yield module
    _calls.find_function.cache_clear()


WHERE = "fla.ops.nsa.parallel:parallel_nsa"


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (None, "fla-core 9.0 is not supported: it has no fla.ops.nsa.parallel.parallel_"),
        (lambda q, k: None, "parallel_nsa takes no v"),
        (lambda q, k, v, *, sinks: None, "parallel_nsa also wants sinks"),
    ],
)
def test_a_version_that_changed_says_what(
    library: types.ModuleType, call: Callable[..., Any] | None, says: str
) -> None:
    if call is not None:
        library.parallel_nsa = call  # type: ignore[attr-defined]
    with pytest.raises(Unsupported, match=says):
        _calls.find_function(FLA, WHERE, "q", "k", "v")


@pytest.mark.parametrize(
    "call", [lambda q, k, v: None, lambda q, k, v, more=1: None, lambda *a, **o: None]
)
def test_a_version_that_takes_what_it_took_is_called(
    library: types.ModuleType, call: Callable[..., Any]
) -> None:
    library.parallel_nsa = call  # type: ignore[attr-defined]
    assert _calls.find_function(FLA, WHERE, "q", "k", "v") is call


# The parameters of `parallel_nsa` in the wheels of fla-core 0.3.2, 0.5.2 and 0.6.0.
PARAMETERS = (
    "q, k, v, g_cmp=None, g_slc=None, g_swa=None, block_indices=None, block_counts=16, "
    "block_size=64, window_size=0, scale=None, cu_seqlens=None"
)


def test_fla_core_is_called_as_it_wants(library: types.ModuleType) -> None:
    """If a version loses a parameter or wants another, the error says which."""
    exec(f"def parallel_nsa({PARAMETERS}): ...", library.__dict__)
    assert _calls.find_function(FLA, fla.PARALLEL, *fla.TAKES) is library.parallel_nsa
    lost = PARAMETERS.replace("cu_seqlens=None", "offsets=None")
    more = f"{PARAMETERS}, *, sinks"
    for changed, says in ((lost, "takes no cu_seqlens"), (more, "also wants sinks")):
        _calls.find_function.cache_clear()
        exec(f"def parallel_nsa({changed}): ...", library.__dict__)
        with pytest.raises(Unsupported, match=f"fla-core 9.0 .*parallel_nsa {says}"):
            fla.fla(*[None] * 4, sm_scale=1.0, block_size=64)  # type: ignore[list-item]


def test_a_library_that_fails_as_it_is_imported_is_unsupported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fails(name: str) -> None:
        raise RuntimeError("0 active drivers")

    _calls.find_function.cache_clear()
    monkeypatch.setattr(Package, "version", "9.0")
    monkeypatch.setattr(_calls.importlib, "import_module", fails)
    with pytest.raises(Unsupported, match="fails to import: RuntimeError: 0 active"):
        _calls.find_function(FLA, WHERE)


def test_every_library_has_an_implementation_and_a_licence() -> None:
    used = {i.package for i in registry.load() if i.package is not None}
    assert used == {p for p in vars(_catalogue).values() if isinstance(p, Package)}
    assert all(p.licence and p.github for p in used)


def test_a_checkout_on_the_path_is_told_by_its_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert _catalogue.FSA.version == ""
    (tmp_path / "fsa/ops").mkdir(parents=True)
    monkeypatch.syspath_prepend(tmp_path)
    assert _catalogue.FSA.version == "of an unknown version"
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git/HEAD").write_text(_catalogue.FSA.commit + "\n")
    assert str(_catalogue.FSA.origin) == "Flash-Sparse-Attention 1da34f35cb18"


def test_masks_gathers_and_flex_attention_are_general() -> None:
    for item in registry.load():
        if item.role is Role.BASELINE and item.source == "nsabench":
            words = ("mask", "gather", "flex", "packed_sdpa")
            general = any(word in item.name for word in words)
            assert not general or item.kind is Kind.GENERAL, item


def test_tiles_of_chosen_blocks_are_those_that_any_query_of_the_tile_chose() -> None:
    """FlashAttention-4 takes them as lists; the sort that makes them once refused its arguments."""
    t, size, group, heads = 4 * flash_attn_4.TILE, 64, 2, 2
    generator = torch.Generator().manual_seed(1)
    last = (torch.arange(t) // size).view(1, t, 1, 1)
    chosen = (torch.rand(1, t, heads, 3, generator=generator) * (last + 1)).long()
    chosen[:, : t // 2, :, 2] = -1

    table, counts, order = flash_attn_4.chosen_tiles(chosen.int(), t, size, group)

    per = flash_attn_4.TILE // size
    for head in range(heads):
        for tile in range(4):
            mine = chosen[0, tile * flash_attn_4.TILE : (tile + 1) * flash_attn_4.TILE, head]
            expected = sorted({int(block) // per for block in mine.flatten() if block >= 0})
            for query_head in range(head * group, (head + 1) * group):
                count = int(counts[0, query_head, tile])
                assert order[0, query_head, tile, :count].tolist() == expected
        for query in (0, t // 2, t - 1):
            expected = sorted({int(b) for b in chosen[0, query, head] if b >= 0})
            assert table[0, head, query].nonzero().flatten().tolist() == expected
