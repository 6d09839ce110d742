"""The adapter of Scalable-Flash-Native-Sparse-Attention, with the library in plain PyTorch."""

import pytest
import torch
from nsa_kernels.band.naive import naive_compressed
from nsa_kernels.scoring.naive import naive_block_scores, naive_select_blocks
from torch import Tensor

from nsabench import Unsupported, ops
from nsabench.implementations.libraries import _calls, flash_attn, flash_nsa
from tests.implementations import libraries
from tests.implementations.stand_ins import assert_right, drawn

SIZES = {"HQ": 4, "H": 2, "D": 32, "block": 16, "stride": 8, "block_size": 16}
WHOLE = {**SIZES, "B": 1, "T": 150, "n_selected": 4, "window": 20}


class Helper:
    """Replaces `NSAHelper`: it holds sizes, and derives counts if the sequences differ from those
    before."""

    kernel_size, stride, block_size, window_size, top_n = 32, 16, 64, 512, 16
    x_cu_seqlens: Tensor | None = None
    counts: Tensor

    @classmethod
    def set_hyperparameters(cls, num_init_blocks, num_local_blocks, **sizes):
        assert (num_init_blocks, num_local_blocks) == (1, 2)
        for name, size in sizes.items():
            setattr(cls, name, size)

    @classmethod
    def init_cu_seqlens(cls, x_cu_seqlens):
        assert x_cu_seqlens.dtype == torch.int32
        held = cls.x_cu_seqlens
        if held is None or held.shape != x_cu_seqlens.shape or bool((held != x_cu_seqlens).any()):
            cls.x_cu_seqlens = x_cu_seqlens
            lengths = x_cu_seqlens.diff()
            cls.counts = ((lengths - cls.kernel_size) // cls.stride + 1).clamp(min=0)


def sequences():
    """Yield the slice of tokens and the slice of compressed keys of each sequence."""
    assert Helper.x_cu_seqlens is not None
    ends = Helper.x_cu_seqlens.tolist()
    keys = [0, *Helper.counts.cumsum(0).tolist()]
    for i in range(len(ends) - 1):
        yield slice(ends[i], ends[i + 1]), slice(keys[i], keys[i + 1])


def mean_pooling(x):
    rows = []
    for tokens, _ in sequences():
        if tokens.stop - tokens.start >= Helper.kernel_size:
            rows.append(x[tokens].unfold(0, Helper.kernel_size, Helper.stride).mean(-1))
    return torch.cat(rows)


def compress_attn(q, k, v, sm_scale):
    out, lse = torch.zeros_like(q), torch.zeros(q.shape[1], q.shape[0])
    for tokens, keys in sequences():
        assert keys.stop <= len(k), "the counts were derived from other sizes"
        given = (x[None] for x in (q[tokens], k[keys], v[keys]))
        sizes = {"block": Helper.kernel_size, "stride": Helper.stride, "sm_scale": sm_scale}
        (out[tokens],), (of_queries,) = naive_compressed(*given, **sizes)
        lse[:, tokens] = of_queries.T
    return out, lse


def slc_topk_indices(q, k, lse, sm_scale, maybe_efficient_version):
    chosen = torch.full((k.shape[1], q.shape[0], Helper.top_n), 1 << 20, dtype=torch.int32)
    for tokens, keys in sequences():
        given, size = (q[tokens][None], k[keys][None]), Helper.block_size
        sizes = {"block": Helper.kernel_size, "stride": Helper.stride, "block_size": size}
        scores = naive_block_scores(*given, **sizes, sm_scale=sm_scale)
        (rows,) = naive_select_blocks(scores, Helper.top_n, block_size=size).transpose(1, 2)
        chosen[:, tokens, : rows.shape[2]] = torch.where(rows < 0, 1 << 20, rows).int()
    return chosen, None


def select_attn(q, k, v, topk, sm_scale):
    assert Helper.x_cu_seqlens is not None
    given = (q, k, v, topk, Helper.block_size, Helper.x_cu_seqlens)
    return libraries.topk_sparse_attention(*given, sm_scale)


def fused_sigmoid_combine(a, b, c, w):
    assert w.shape == (*a.shape[:2], 3)
    gates = w.sigmoid().unsqueeze(-2)
    return a * gates[..., 0] + b * gates[..., 1] + c * gates[..., 2]


def near(q, k, v, cu, longest, scale, window):
    """Attend to a window in each packed sequence."""
    out = torch.zeros_like(q)
    for tokens, _ in sequences():
        given = (x[tokens] for x in (q, k, v))
        out[tokens] = libraries.of_sequence(*given, scale, True, (window - 1, 0))
    return out


@pytest.fixture
def library(monkeypatch):
    held = {
        flash_nsa.HELPER: Helper,
        flash_nsa.MEANS: mean_pooling,
        flash_nsa.COMPRESSED: compress_attn,
        flash_nsa.CHOICE: slc_topk_indices,
        flash_nsa.SELECTED: select_attn,
        flash_nsa.SUM: fused_sigmoid_combine,
    }

    def function(where, *takes):
        return held[where]

    monkeypatch.setattr(flash_nsa, "_function", function)
    monkeypatch.setattr(_calls, "refuse_float32", lambda *_: None)
    monkeypatch.setattr(flash_attn.Flash, "__call__", lambda self, *given: near(*given))


def test_all_of_nsa_is_right(library):
    """Sizes change from case to case, with the same and with other sequences."""
    cases = [
        ("dense", {}),
        ("dense", {"window": 7, "n_selected": 3}),
        ("dense", {"stride": 16}),
        ("dense", {"B": 2, "T": 77}),
        ("packed", {"B": 3, "T": 60}),
    ]
    for distribution, changed in cases:
        inputs = drawn("nsa_attention", distribution, seed=5, **{**WHOLE, **changed})
        assert_right(flash_nsa.flash_nsa_fa4, "nsa_attention", inputs)


def test_sequences_may_change_in_place(library):
    """The library keeps `cu_seqlens`, and a worker exchanges the values of inputs in place."""
    sizes = {**WHOLE, "B": 3, "T": 60}
    first, second = (drawn("nsa_attention", "packed", seed=seed, **sizes) for seed in (5, 6))
    assert not torch.equal(first.tensors["cu_seqlens"], second.tensors["cu_seqlens"])
    flash_nsa.flash_nsa_fa4(*first.tensors.values(), **first.options)
    for name, x in first.tensors.items():
        x.copy_(second.tensors[name])
    assert_right(
        flash_nsa.flash_nsa_fa4, "nsa_attention", ops.Inputs(first.tensors, second.options)
    )


@pytest.mark.parametrize("distribution", ["random", "packed", "local"])
def test_selected_blocks_are_right(library, distribution):
    sizes = {"B": 1, "T": 150, "HQ": 4, "H": 2, "D": 32, "S": 4, "block_size": 16}
    for changed in ({}, {"T": 75}) if distribution == "packed" else ({}, {"B": 2, "T": 75}):
        inputs = drawn("selection_blocks", distribution, **{**sizes, **changed})
        assert_right(flash_nsa.flash_nsa_blocks, "selection_blocks", inputs)


def test_a_capture_is_refused(library, monkeypatch):
    monkeypatch.setattr(_calls, "is_capturing", lambda: True)
    inputs = drawn("nsa_attention", "dense", **WHOLE)
    with pytest.raises(Unsupported, match="cu_seqlens"):
        flash_nsa.flash_nsa_fa4(*inputs.tensors.values(), **inputs.options)
