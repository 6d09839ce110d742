"""The baselines of torch: the arguments of its kernels, kept results, and masks."""

from contextlib import nullcontext

import pytest
import torch

from nsabench import Unsupported, ops, registry
from nsabench.implementations import torch_attention
from nsabench.implementations.baselines import bands, decode, selection_ranges, selection_rows
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import DType, Kind, Role, Runs
from nsabench.planning import matrix, resolve
from tests.implementations import stand_ins
from tests.implementations.stand_ins import (
    aten_flash,
    blind_the_host,
    registered,
    uncompiled_flex,
)

VARLEN = {"N": 5, "H": 2, "D": 16, "L": 40}
SLIDING = {"B": 5, "T": 90, "HQ": 4, "H": 2, "D": 16}
COMPRESSED = {**SLIDING, "block": 32, "stride": 16}
LONG_RANGES = {"B": 2, "S": 40, "G": 2, "H": 4, "D": 16, "S_kv": 256, "n_spans": 3, "L": 60}
BLOCKS = {"B": 1, "T": 256, "HQ": 4, "H": 2, "D": 16, "S": 2, "block_size": 32}
RANGES = {"B": 2, "S": 3, "G": 2, "H": 2, "D": 16, "S_kv": 60, "n_spans": 3, "L": 24}


def drawn(op, shape, distribution):
    return stand_ins.drawn(op, distribution, dtype=DType.BFLOAT16, seed=1, **shape)


def assert_right(call, op, inputs):
    stand_ins.assert_right(call, op, inputs, 2e-2)


@pytest.mark.parametrize("name", ["flash_varlen", "flash_varlen_gqa"])
@pytest.mark.parametrize("distribution", ["spread", "empty_rows", "all_empty"])
def test_flash_attention_receives_the_length_of_the_longest_row(monkeypatch, name, distribution):
    """With the number of all keys instead, FlashAttention would not split long rows."""
    told = []

    def flash(*given, **how):
        told.append(given[4])
        return aten_flash(*given[:6], **how)

    monkeypatch.setattr(torch_attention, "aten_flash", flash)
    inputs = drawn("selection_varlen", VARLEN, distribution)
    assert_right(getattr(selection_rows, name), "selection_varlen", inputs)
    assert {longest[1] for longest in told} <= {40}


@pytest.mark.parametrize("distribution", ["dense", "packed"])
def test_windows_receive_the_length_of_the_longest_sequence(monkeypatch, distribution):
    told = []

    def aten(q, k, v, cu, longest, *_):
        told.append(longest)
        return q

    monkeypatch.setattr(torch_attention, "aten_flash", aten)
    sizes = {"B": 3, "T": 40, "HQ": 2, "H": 1, "D": 16, "window": 8}
    inputs = drawn("sliding_window", sizes, distribution)
    bands.flash_varlen(*inputs.tensors.values(), **inputs.options)
    ends = inputs.tensors.get("cu_seqlens", torch.tensor([0, 40]))
    assert set(told) == {(int(ends.diff().max()),) * 2}


@pytest.mark.parametrize("distribution", ops.get("selection_ranges").distributions)
def test_selected_keys_are_packed_without_waiting_for_the_device(monkeypatch, distribution):
    blind_the_host(monkeypatch)
    inputs = drawn("selection_ranges", RANGES, distribution)
    calls = []
    monkeypatch.setattr(
        torch_attention, "aten_flash", lambda *given, causal: calls.append(given) or given[0]
    )
    gathering = (
        selection_ranges.flash_varlen,
        selection_ranges.flash_varlen_gqa,
        selection_ranges.packed_sdpa,
    )
    for attention in gathering:
        attention(*inputs.tensors.values(), **inputs.options)
    monkeypatch.undo()
    monkeypatch.setattr(torch_attention, "aten_flash", aten_flash)
    for attention in gathering:
        assert_right(attention, "selection_ranges", inputs)
    assert [longest for _, _, _, _, longest, _ in calls] == [(2, 24), (1, 24)]


@pytest.mark.parametrize("distribution", ["disjoint", "reversed", "empty_rows", "all_empty"])
def test_places_without_a_key_have_no_gradient(monkeypatch, distribution):
    """FlashAttention's backward does not write the gradients of places without a key."""

    def flash(q, k, v, cu, *given, causal):
        for x in (k, v):
            x.register_hook(lambda grad, end=int(cu[1][-1]): _unwritten(grad, end))
        return aten_flash(q, k, v, cu, *given, causal=causal)

    monkeypatch.setattr(torch_attention, "aten_flash", flash)
    inputs = drawn("selection_ranges", RANGES, distribution)
    q, k, v, ranges = inputs.tensors.values()
    leaves = [x.float().requires_grad_() for x in (q, k, v)]
    monkeypatch.setattr(torch_attention, "check_flash", lambda *_: None)
    out = selection_ranges.flash_varlen(*leaves, ranges, **inputs.options)
    if out.requires_grad:  # without any key the stand-in returns a constant
        for grad in torch.autograd.grad(out.sum(), leaves, allow_unused=True):
            assert grad is None or grad.isfinite().all()


def _unwritten(grad, end):
    changed = grad.clone()
    changed[end:] = float("nan")
    return changed


@pytest.mark.parametrize("op", ["decode_selected", "decode_step"])
def test_no_more_keys_are_gathered_than_a_short_cache_has(monkeypatch, op):
    widths = []

    def sdpa(q, k, *given, **how):
        widths.append(k.shape[2])
        return attention(q, k, *given, **how)

    attention = decode.scaled_dot_product_attention
    monkeypatch.setattr(decode, "scaled_dot_product_attention", sdpa)
    sizes = {"B": 2, "S": 40, "HQ": 4, "H": 2, "D": 16, "block_size": 16, "n_selected": 9}
    call = decode.gathered_sdpa
    if op == "decode_step":
        call, sizes = decode.torch_step, {**sizes, "block": 8, "stride": 4, "window": 8}
    inputs = drawn(op, sizes, "random")
    assert_right(call, op, inputs)
    assert max(widths) == 48


def test_an_alternative_has_the_kind_of_its_baseline():
    items = {(i.op, i.name): i for i in registry.load()}
    alternatives = [i for i in items.values() if i.role is Role.ALTERNATIVE]
    for item in alternatives:
        twin = items[item.computes, item.name.removeprefix("dense_")]
        assert item.kind is twin.kind, item
    assert {i.name for i in alternatives if i.kind is Kind.GENERAL} == {"dense_flex_attention"}


@pytest.mark.parametrize("capturing", [False, True])
def test_results_of_a_capture_are_not_kept(monkeypatch, capturing):
    waits = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: capturing)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: waits.append(None))
    get = torch_attention.memoised(2)(lambda size: [size])
    assert (get(1) is get(1)) != capturing
    assert len(waits) == (not capturing)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("op", "sizes", "distribution"),
    [
        ("sliding_window", {**SLIDING, "window": 1}, "packed"),
        ("sliding_window", {**SLIDING, "window": 300}, "packed"),
        ("sliding_window", {**SLIDING, "B": 2, "T": 400, "window": 300}, "packed"),
        ("sliding_window", {**SLIDING, "B": 2, "window": 40}, "dense"),
        ("compressed", COMPRESSED, "packed"),
        ("compressed", COMPRESSED, "dense"),
        ("compressed", {**COMPRESSED, "block": 7, "stride": 3}, "dense"),
        ("compressed", {**COMPRESSED, "block": 4, "stride": 1}, "dense"),
        ("selection_ranges", LONG_RANGES, "mixed"),
        ("selection_blocks", BLOCKS, "random"),
        ("selection_blocks", {**BLOCKS, "T": 384}, "packed"),
    ],
)
def test_masks_and_block_masks_are_right(monkeypatch, op, sizes, distribution):
    uncompiled_flex(monkeypatch)
    inputs = stand_ins.drawn(op, distribution, **sizes)
    stand_ins.assert_right(registered(op, "masked_sdpa"), op, inputs)
    with pytest.raises(Unsupported) if distribution == "packed" else nullcontext():
        stand_ins.assert_right(registered(op, "flex_attention"), op, inputs)


def test_attention_to_all_keys_is_planned_only_for_dense_selections(tmp_path):
    items = [i for i in registry.load() if i.op == "selection_blocks" and Runs.CPU in i.devices]
    infos = [ImplementationInfo.model_validate(i, from_attributes=True) for i in items]
    path = tmp_path / "m.yaml"
    path.write_text(
        "op: selection_blocks\ninclude:\n"
        "  - {B: 1, T: 64, HQ: 2, H: 1, D: 16, S: 2, distribution: [random, dense]}\n"
    )
    planned = resolve.resolve(matrix.load(path), infos, device="cpu").cases
    by_distribution = {p.case.distribution: p.implementations for p in planned}
    assert "sdpa_causal" in by_distribution["dense"]
    assert not any(n.startswith("sdpa_causal") for n in by_distribution["random"])
    assert "masked_sdpa" in by_distribution["random"]
