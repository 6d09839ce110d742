"""The families' formulas in plain torch, in float64, against the oracle that shares nothing with
them, and against the kernels."""

from __future__ import annotations

import nsa_kernels
import oracle
import pytest
import torch
from nsa_kernels.attention.naive import naive_nsa
from nsa_kernels.band.naive import naive_compressed, naive_sliding_window
from nsa_kernels.scoring.naive import naive_block_scores, naive_select_blocks
from nsa_kernels.selection.blocks.naive import naive_blocks
from nsa_kernels.selection.ranges.naive import naive_ranges
from nsa_kernels.selection.rows.naive import naive_rows
from nsa_kernels.selection.varlen.naive import naive_varlen

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
Tensors = tuple[torch.Tensor, ...]


def randn(*size: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(DEVICE, dtype)


def close(got: Tensors, want: Tensors) -> None:
    for g, w in zip(got, want, strict=True):
        assert g.dtype == torch.float64
        torch.testing.assert_close(g, w, atol=1e-12, rtol=1e-12)


def seen_blocks(index: torch.Tensor, size: int) -> torch.Tensor:
    """Spans [B, T, H, S, 2] of chosen blocks, up to the query's own token; void ones empty."""
    own = torch.arange(index.shape[1], device=index.device)[:, None, None]
    start = index * size
    end = torch.minimum(start + size, own + 1)
    return torch.stack([start, torch.where(index < 0, start, end)], -1)


@pytest.mark.parametrize("length", [0, 1, 37])
def test_rows(length) -> None:
    args = randn(3, 4, 16), randn(3, length, 16), randn(3, length, 24)
    close(naive_rows(*args, sm_scale=0.3), oracle.rows(*args, scale=0.3))


def test_varlen() -> None:
    cu = torch.tensor([0, 5, 5, 40], dtype=torch.int32, device=DEVICE)
    args = randn(3, 2, 16), randn(40, 16), randn(40, 24), cu
    close(naive_varlen(*args), oracle.varlen(*args))


def test_ranges_count_an_overlap_once() -> None:
    q, k, v = randn(2, 3, 2, 4, 16), randn(2, 2, 50, 16), randn(2, 2, 50, 24)
    spans = torch.randint(-5, 60, (2, 3, 2, 3, 2), generator=torch.Generator().manual_seed(0))
    spans[0, 0, 0] = 7  # nothing at all
    close(naive_ranges(q, k, v, spans.to(DEVICE)), oracle.ranges(q, k, v, spans.to(DEVICE)))


def test_blocks() -> None:
    q, k, v = randn(2, 40, 4, 16), randn(2, 40, 2, 16), randn(2, 40, 2, 24)
    index = torch.randint(-1, 6, (2, 40, 2, 3), generator=torch.Generator().manual_seed(0))
    index = index.to(DEVICE, torch.int32)
    grouped = q.unflatten(2, (2, 2)), k.transpose(1, 2), v.transpose(1, 2)
    out, lse = oracle.ranges(*grouped, seen_blocks(index, 8), 0.25)
    close(naive_blocks(q, k, v, index, 8, 0.25), (out.flatten(2, 3), lse.flatten(2, 3)))


@pytest.mark.parametrize("window", [1, 7, 100])
def test_sliding_window(window) -> None:
    args = randn(2, 30, 4, 16), randn(2, 30, 2, 16), randn(2, 30, 2, 24)
    keep = oracle.window_mask([30], window).to(DEVICE)
    close(naive_sliding_window(*args, window=window), oracle.banded(*args, keep)[:2])


@pytest.mark.parametrize(("block", "stride", "size"), [(8, 4, 16), (4, 4, 4), (12, 4, 8)])
def test_compressed_and_its_scores(block, stride, size) -> None:
    keep = oracle.compressed_mask([50], block, stride).to(DEVICE)
    keys = keep.shape[1]
    q, k, v = randn(2, 50, 4, 16), randn(2, keys, 2, 16), randn(2, keys, 2, 24)
    out, lse, weights = oracle.banded(q, k, v, keep)
    close(naive_compressed(q, k, v, block=block, stride=stride), (out, lse))
    want = torch.zeros(2, 50, 2, -(-50 // size), dtype=torch.float64, device=DEVICE)
    for key in range(keys):
        for place in range(key, key + block // stride):
            if place * stride // size < want.shape[3]:
                want[..., place * stride // size] += weights[..., key]
    close((naive_block_scores(q, k, block=block, stride=stride, block_size=size),), (want,))


@pytest.mark.parametrize("first", [0, 61])
def test_choice_is_that_of_the_kernel(first) -> None:
    """Of few different scores, so that most comparisons are ties."""
    generator = torch.Generator().manual_seed(first)
    scores = torch.randint(0, 3, (2, 30, 2, 12), generator=generator).float().to(DEVICE)
    ranges = nsa_kernels.select_blocks(scores, 5, block_size=8, first_position=first)
    chosen = torch.where(ranges[..., 1] > 0, ranges[..., 0] // 8, -1)
    want = naive_select_blocks(scores, 5, block_size=8, first_position=first)
    assert torch.equal(chosen.long(), want)


def test_the_kernels_agree() -> None:
    """Each family's call on the values that its formula is given."""
    q, k, v = (
        randn(*size, dtype=torch.float32) for size in ((70, 4, 16), (70, 2, 16), (70, 2, 16))
    )
    long, wide = (q[None], k[None], v[None]), (q.double()[None], k.double()[None], v.double()[None])
    rows = q.view(14, 20, 16), k.reshape(14, 10, 16), v.reshape(14, 10, 16)
    cu = torch.tensor([0, 9, 9, 70], dtype=torch.int32, device=DEVICE)
    packed = q[:3], k[:, 0], v[:, 0]
    index = torch.randint(0, 5, (1, 70, 2, 3), generator=torch.Generator().manual_seed(0))
    index = index.to(DEVICE, torch.int32)
    spans = torch.tensor([[3, 30], [20, 41]], dtype=torch.int32, device=DEVICE).expand(
        1, 1, 2, 2, 2
    )
    one = q[:1].view(1, 1, 2, 2, 16), k.transpose(0, 1)[None], v.transpose(0, 1)[None]
    few = {"block": 8, "stride": 4}
    pairs = [
        (nsa_kernels.selection_rows(*rows), naive_rows(*(x.double() for x in rows))),
        (
            nsa_kernels.selection_varlen(*packed, cu),
            naive_varlen(*(x.double() for x in packed), cu),
        ),
        (
            nsa_kernels.selection_ranges(*one, spans),
            naive_ranges(*(x.double() for x in one), spans),
        ),
        (
            nsa_kernels.block_selection_attention(*long, index, block_size=16, return_lse=True),
            naive_blocks(*wide, index, 16, 0.25),
        ),
        (nsa_kernels.sliding_window(*long, window=9), naive_sliding_window(*wide, window=9)),
        (
            nsa_kernels.compressed_attention_with_scores(
                long[0], *(x[:, :16] for x in long[1:]), **few, block_size=16
            ),
            (
                *naive_compressed(wide[0], *(x[:, :16] for x in wide[1:]), **few),
                naive_block_scores(wide[0], wide[1][:, :16], **few, block_size=16),
            ),
        ),
    ]
    for got, want in pairs:
        for g, w in zip(got, want, strict=True):
            torch.testing.assert_close(g.double(), w, atol=2e-5, rtol=1e-4)


def test_the_whole_is_the_gated_sum_of_branches() -> None:
    """By gates of 0 and 1 each branch comes through alone."""
    q, k, v = randn(1, 40, 2, 16), randn(1, 40, 1, 16), randn(1, 40, 1, 16)
    k_cmp, v_cmp = randn(1, 9, 1, 16), randn(1, 9, 1, 16) * 2
    sizes = {"block": 8, "stride": 4, "block_size": 8, "n_selected": 5, "window": 6}

    def branch(i: int) -> torch.Tensor:
        gates = torch.zeros(1, 40, 2, 3, dtype=torch.float64, device=DEVICE)
        gates[..., i] = 1
        return naive_nsa(q, k, v, k_cmp, v_cmp, gates, **sizes)

    complete = oracle.compressed_mask([40], 8, 4).to(DEVICE)
    near = oracle.window_mask([40], 6).to(DEVICE)
    every = torch.ones(40, 40, dtype=torch.bool, device=DEVICE).tril()
    torch.testing.assert_close(branch(0), oracle.banded(q, k_cmp, v_cmp, complete)[0])
    torch.testing.assert_close(branch(2), oracle.banded(q, k, v, near)[0])
    # Five blocks of eight hold all forty tokens.
    torch.testing.assert_close(branch(1), oracle.banded(q, k, v, every)[0])
