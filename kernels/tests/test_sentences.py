"""Wrong arguments are refused at the call that is wrong, by one sentence that names it."""

from __future__ import annotations

import nsa_kernels
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def zeros(*size: int) -> torch.Tensor:
    return torch.zeros(size, device=DEVICE)


def calls(q: torch.Tensor, d: int):
    """Every call with this q, and keys of head dim d that would fit a right one."""
    rows, bthd, cache = zeros(2, 5, d), zeros(1, 4, 1, d), zeros(1, 1, 8, d)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32, device=DEVICE)
    spans = torch.zeros(1, 2, 1, 1, 2, dtype=torch.int32, device=DEVICE)
    index = torch.zeros(1, 4, 1, 1, dtype=torch.int32, device=DEVICE)
    gates = zeros(1, 2, 3)
    n = nsa_kernels
    return {
        "selection_rows": lambda: n.selection_rows(q, rows, rows),
        "selection_rows_per_head": lambda: n.selection_rows_per_head(q, rows, rows),
        "selection_varlen": lambda: n.selection_varlen(q, rows[0], rows[0], cu),
        "selection_ranges": lambda: n.selection_ranges(q, cache, cache, spans),
        "selection_attention": lambda: n.selection_attention(q, cache, cache, spans),
        "packed_sdpa": lambda: n.packed_sdpa(q, cache, cache, spans),
        "block_selection_attention": lambda: n.block_selection_attention(q, bthd, bthd, index),
        "plan_blocks": lambda: n.plan_blocks(q, bthd, bthd, index),
        "sliding_window": lambda: n.sliding_window(q, bthd, bthd, window=2),
        "compressed_attention": lambda: n.compressed_attention(q, bthd, bthd),
        "compressed_attention_with_scores": lambda: n.compressed_attention_with_scores(
            q, bthd, bthd
        ),
        "decode_compressed": lambda: n.decode_compressed(q, cache, cache),
        "decode_window": lambda: n.decode_window(q, cache, cache, window=2),
        "decode_selected": lambda: n.decode_selected(q, cache, cache, spans[:, 0]),
        "decode_scores": lambda: n.decode_scores(q, cache, zeros(1, 2), 2),
        "decode_step": lambda: n.decode_step(q, cache, cache, cache, cache, gates),
    }


SHAPES = {"5": (1, 2, 1, 2), "4": (1, 4, 2), "rows": (2, 2), "token": (1, 2)}
LEADING = {
    **dict.fromkeys(("selection_rows", "selection_rows_per_head", "selection_varlen"), (2, 2)),
    **dict.fromkeys(("selection_ranges", "selection_attention", "packed_sdpa"), (1, 2, 1, 2)),
}


@pytest.mark.parametrize("name", list(calls(torch.zeros(1), 16)))
def test_a_head_dim_of_none_and_a_q_of_no_dimension_are_refused(name) -> None:
    """Of 0 the default scale divided by zero, and of no dimension there is no last one."""
    leading = LEADING.get(name, (1, 2) if name.startswith("decode") else (1, 4, 2))
    for q, d in ((zeros(), 16), (zeros(*leading, 0), 0), (zeros(3), 16)):
        with pytest.raises(ValueError, match=r"expected q|expected x|head dim"):
            calls(q, d)[name]()


@pytest.mark.parametrize("window", [2.5, "4", None, True, 0, -1])
def test_a_window_that_is_no_number_of_keys_is_refused(window) -> None:
    q, cache, gates = zeros(1, 2, 16), zeros(1, 1, 8, 16), zeros(1, 2, 3)
    said = "window must be a whole number of at least 1"
    with pytest.raises(ValueError, match=f"sliding_window: {said}"):
        nsa_kernels.sliding_window(zeros(1, 4, 2, 16), *[zeros(1, 4, 1, 16)] * 2, window=window)
    with pytest.raises(ValueError, match=f"decode_window: {said}"):
        nsa_kernels.decode_window(q, cache, cache, window=window)
    with pytest.raises(ValueError, match=f"decode_step: {said}"):
        nsa_kernels.decode_step(q, *[cache] * 4, gates, window=window)


@pytest.mark.parametrize("bad", [2.5, "4", None, 0, -1])
@pytest.mark.parametrize("name", ["block", "stride", "block_size"])
def test_a_size_of_blocks_that_is_no_number_of_tokens_is_refused(name, bad) -> None:
    q, x, cache = zeros(1, 4, 2, 16), zeros(1, 4, 1, 16), zeros(1, 1, 8, 16)
    of, sizes = zeros(1, 2, 16), {name: bad}
    said = f"{name} must be|stride must divide"
    with pytest.raises(ValueError, match=said):
        nsa_kernels.compressed_attention_with_scores(q, x, x, **sizes)
    with pytest.raises(ValueError, match=said):
        nsa_kernels.decode_scores(of, cache, zeros(1, 2), 2, **sizes)
    with pytest.raises(ValueError, match=said):
        nsa_kernels.decode_step(of, *[cache] * 4, zeros(1, 2, 3), **sizes)
    if name != "block_size":
        with pytest.raises(ValueError, match=said):
            nsa_kernels.compressed_attention(q, x, x, **sizes)


@pytest.mark.parametrize("bad", [2.5, "4", None])
def test_a_choice_of_blocks_by_what_is_no_number_is_refused(bad) -> None:
    scores = zeros(1, 4, 1, 2)
    for name in ("block_size", "first_position", "local"):
        with pytest.raises(ValueError, match=f"select_blocks: {name} must be a whole number"):
            nsa_kernels.select_blocks(scores, 3, **{name: bad})
    with pytest.raises(ValueError, match="select_blocks: count must be a whole number"):
        nsa_kernels.select_blocks(scores, bad)
    with pytest.raises(ValueError, match="decode_scores: n_blocks must be a whole number"):
        nsa_kernels.decode_scores(zeros(1, 2, 16), zeros(1, 1, 8, 16), zeros(1, 2), bad)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), "big"])
@pytest.mark.parametrize("name", list(calls(torch.zeros(1), 16)))
def test_a_scale_that_is_no_positive_number_is_refused(name, scale, monkeypatch) -> None:
    if name == "plan_blocks":
        pytest.skip("plans have no scale")
    call = getattr(nsa_kernels, name)
    monkeypatch.setattr(nsa_kernels, name, lambda *args, **how: call(*args, **how, sm_scale=scale))
    leading = LEADING.get(name, (1, 2) if name.startswith("decode") else (1, 4, 2))
    with pytest.raises(ValueError, match="sm_scale must be a positive"):
        calls(zeros(*leading, 16), 16)[name]()


def test_packed_sequences_that_are_no_tensor_of_numbers_are_refused() -> None:
    q, x = zeros(1, 4, 2, 16), zeros(1, 4, 1, 16)
    index = torch.zeros(1, 4, 1, 1, dtype=torch.int32, device=DEVICE)
    for cu in ([0, 2, 4], torch.tensor(3, dtype=torch.int32, device=DEVICE)):
        with pytest.raises((TypeError, ValueError), match="cu_seqlens"):
            nsa_kernels.sliding_window(q, x, x, cu, window=2)
        with pytest.raises((TypeError, ValueError), match="cu_seqlens"):
            nsa_kernels.block_selection_attention(q, x, x, index, cu_seqlens=cu)
        with pytest.raises((TypeError, ValueError), match="cu_seqlens"):
            nsa_kernels.selection_varlen(q[0], x[0, :, 0], x[0, :, 0], cu)
