"""Adapters of public libraries, with plain PyTorch instead of the kernels of the libraries."""

import sys
import types
from contextlib import nullcontext

import pytest

from nsabench import Unsupported, ops, registry
from nsabench.implementations import torch_attention
from nsabench.implementations.libraries import _calls, fla, flash_attn, flashinfer
from nsabench.implementations.libraries.fla import FLA
from nsabench.model.vocabulary import DType, Kind, Role
from nsabench.registry import Package
from tests.implementations import libraries
from tests.implementations.stand_ins import assert_right, drawn, registered


@pytest.fixture
def stand_ins(monkeypatch):
    monkeypatch.setattr(_calls, "find_function", lambda package, where, *_: libraries.named(where))
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
            ("cudnn_nsa", distribution, sizes)
            for distribution, sizes in (
                *(("random", {}), ("random", {"B": 2, "T": 75}), ("packed", {})),
                *(("packed", {"T": 75}), ("local", {}), ("local", {"B": 2, "T": 75})),
            )
        ),
        ("fla", "random", OF_FLA),
        ("fla", "packed", OF_FLA),
    ],
)
def test_selected_blocks_are_right(stand_ins, name, distribution, sizes):
    inputs = drawn("selection_blocks", distribution, seed=5, **{**BLOCKS, **sizes})
    assert_right(registered("selection_blocks", name), "selection_blocks", inputs)


VARIANT = {"B": 1, "T": 90, "HQ": 16, "H": 1, "D": 16, "block_size": 16, "n_selected": 4}


@pytest.mark.parametrize("distribution", ["dense", "packed"])
def test_fla_selects_blocks_itself(stand_ins, distribution):
    sizes = VARIANT | ({"B": 2, "T": 45} if distribution == "packed" else {})
    inputs = drawn("nsa_without_window", distribution, **sizes)
    assert_right(fla.fla_whole, "nsa_without_window", inputs)


@pytest.mark.parametrize(
    "changed", [{"n_selected": 5}, {"block_size": 48}, {"n_selected": 16}, {"H": 2}]
)
def test_fla_declines_sizes(stand_ins, changed):
    inputs = drawn("nsa_without_window", "dense", **VARIANT | changed)
    with pytest.raises(Unsupported):
        fla.fla_whole(*inputs.tensors.values(), **inputs.options)


CACHE = {"B": 2, "HQ": 8, "H": 2, "D": 64, "block_size": 64, "n_selected": 4}


@pytest.mark.parametrize("S", [256, 512, 300, 130, 64])
def test_blocks_of_a_cache_are_pages(stand_ins, S):
    inputs = drawn("decode_selected", ops.get("decode_selected").distributions[0], S=S, **CACHE)
    pages = registered("decode_selected", "flashinfer_pages")
    for _ in range(2):  # the second call keeps the plan and writes the table again
        assert_right(pages, "decode_selected", inputs)
    cut_off = pytest.raises(Unsupported, match="a partial block")
    with nullcontext() if S in (256, 512) else cut_off:
        assert_right(flash_attn.flash_attn_4_pages, "decode_selected", inputs)


@pytest.mark.parametrize("S", [256, 300, 30])
def test_a_whole_cache_is_pages(stand_ins, S):
    sizes = {"B": 2, "HQ": 8, "H": 2, "D": 64, "S": S}
    for op, more in (("decode_dense", {}), ("decode_window", {"window": 20})):
        inputs = drawn(op, ops.get(op).distributions[0], **sizes, **more)
        assert_right(registered(op, "flashinfer"), op, inputs)


BAND = {"B": 2, "T": 40, "HQ": 4, "H": 2, "D": 16}
ROWS = {"N": 6, "H": 3, "D": 16, "L": 20}
DECODE = {"B": 2, "HQ": 8, "H": 2, "D": 16, "S": 50}


@pytest.mark.parametrize("name", ["flash_attn", "flash_attn_4"])
@pytest.mark.parametrize(
    ("op", "distribution", "sizes"),
    [
        ("causal_attention", "dense", BAND),
        ("causal_attention", "packed", BAND),
        ("sliding_window", "dense", {**BAND, "window": 9}),
        ("sliding_window", "packed", {**BAND, "window": 9}),
        ("compressed", "dense", {**BAND, "block": 8, "stride": 4}),
        ("compressed", "packed", {**BAND, "block": 8, "stride": 4}),
        ("selection_varlen", "spread", ROWS),
        ("selection_varlen", "empty_rows", ROWS),
        ("selection_varlen", "all_empty", ROWS),
        ("decode_dense", "random", DECODE),
        ("decode_window", "random", {**DECODE, "window": 20}),
        ("decode_compressed", "random", {**DECODE, "block": 8, "stride": 4}),
    ],
)
def test_flash_attention_computes_the_op(stand_ins, name, op, distribution, sizes):
    inputs = drawn(op, distribution, **sizes)
    declines = (op, distribution) == ("compressed", "packed")
    with pytest.raises(Unsupported) if declines else nullcontext():
        assert_right(registered(op, name), op, inputs)


@pytest.mark.parametrize(("name", "splits"), [("flash_attn", 0), ("flash_attn_4", 1)])
def test_flash_attention_splits_the_keys_of_a_cache(stand_ins, monkeypatch, name, splits):
    given_splits = []

    def attend(q, *given, num_splits, **_):
        given_splits.append(num_splits)
        return q

    for function_name in ("flash_attn_func", "flash_attn_with_kvcache"):
        monkeypatch.setitem(libraries.STAND_INS, function_name, attend)
    inputs = drawn("decode_dense", "random", B=1, HQ=4, H=2, D=16, S=20)
    registered("decode_dense", name)(*inputs.tensors.values(), **inputs.options)
    assert given_splits == [splits]


def test_a_library_that_is_missing_says_how_to_install_it():
    for item in registry.load():
        if item.package is None or item.package.version:
            continue
        inputs = smallest(item.computes or item.op)
        with pytest.raises(Unsupported) as raised:
            item.call(*inputs.tensors.values(), **inputs.options)
        assert item.package.install in str(raised.value)


def smallest(op):
    contract = ops.get(op)
    text = contract.check_shapes["cpu"][0]
    sizes = {n: int(v) for n, v in (part.split("=") for part in text.split(","))}
    return drawn(op, contract.distributions[0], dtype=DType.BFLOAT16, seed=0, **sizes)


@pytest.fixture
def library(monkeypatch):
    """Return an empty module in the place of fla-core's, installed in version 9.0."""
    _calls.find_function.cache_clear()
    module = types.ModuleType("fla.ops.nsa.parallel")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(Package, "version", "9.0")
    monkeypatch.setattr(_calls.importlib, "import_module", lambda name: module)
    yield module
    _calls.find_function.cache_clear()


WHERE = "fla.ops.nsa.parallel:parallel_nsa"


def test_a_version_without_the_function_is_unsupported(library):
    with pytest.raises(Unsupported, match=r"9.0.*parallel_nsa"):
        _calls.find_function(FLA, WHERE, "q", "k", "v")


# The parameters of `parallel_nsa` in the wheels of fla-core 0.3.2, 0.5.2 and 0.6.0.
PARAMETERS = (
    "q, k, v, g_cmp=None, g_slc=None, g_swa=None, block_indices=None, block_counts=16, "
    "block_size=64, window_size=0, scale=None, cu_seqlens=None"
)


def test_fla_core_has_the_parameters_that_are_given(library):
    exec(f"def parallel_nsa({PARAMETERS}): ...", library.__dict__)
    assert _calls.find_function(FLA, fla.PARALLEL, *fla.TAKES) is library.parallel_nsa
    lost = PARAMETERS.replace("cu_seqlens=None", "offsets=None")
    more = f"{PARAMETERS}, *, sinks"
    for changed, says in ((lost, "cu_seqlens"), (more, "sinks")):
        _calls.find_function.cache_clear()
        exec(f"def parallel_nsa({changed}): ...", library.__dict__)
        with pytest.raises(Unsupported, match=f"fla-core 9.0 .*parallel_nsa.*{says}"):
            fla.fla(*[None] * 4, sm_scale=1.0, block_size=64)


def test_a_library_that_fails_to_import_is_unsupported(monkeypatch):
    def fails(name):
        raise RuntimeError("0 active drivers")

    _calls.find_function.cache_clear()
    monkeypatch.setattr(Package, "version", "9.0")
    monkeypatch.setattr(_calls.importlib, "import_module", fails)
    with pytest.raises(Unsupported, match="RuntimeError: 0 active"):
        _calls.find_function(FLA, WHERE)


def test_masks_gathers_and_flex_attention_are_general():
    for item in registry.load():
        if item.role is Role.BASELINE and item.source == "nsabench":
            words = ("mask", "gather", "flex", "packed_sdpa")
            general = any(word in item.name for word in words)
            assert not general or item.kind is Kind.GENERAL, item
