"""What autograd cannot have of the kernels is refused by a sentence: torch.func, and derivatives of
derivatives."""

from __future__ import annotations

import nsa_kernels
import pytest
import torch
from nsa_kernels import Policy

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def randn(*size: int) -> torch.Tensor:
    gen = torch.Generator().manual_seed(sum(size))
    return torch.randn(size, generator=gen).to(DEVICE)


def calls():
    n = nsa_kernels
    spans = torch.tensor([0, 5], dtype=torch.int32, device=DEVICE).expand(1, 2, 1, 1, 2)
    index = torch.zeros(1, 4, 1, 1, dtype=torch.int32, device=DEVICE)
    kv, x, rows, cache = randn(1, 1, 8, 16), randn(1, 4, 1, 16), randn(2, 5, 16), randn(1, 1, 8, 16)
    cu = torch.tensor([0, 2, 5], dtype=torch.int32, device=DEVICE)
    gates, lse = torch.rand(1, 2, 3, device=DEVICE), torch.zeros(1, 2, device=DEVICE)
    layer = n.NSAttention(16, 2, 1, 16, block=8, stride=4, block_size=16, n_selected=3).to(DEVICE)
    q5, q4, q2, q1 = randn(1, 2, 1, 2, 16), randn(1, 4, 2, 16), randn(2, 2, 16), randn(1, 2, 16)
    off = Policy(enabled=False)
    return {
        "selection_ranges": (lambda q: n.selection_ranges(q, kv, kv, spans)[0], q5),
        "selection_attention": (lambda q: n.selection_attention(q, kv, kv, spans), q5),
        "packed": (lambda q: n.selection_attention(q, kv, kv, spans, policy=off), q5),
        "packed_sdpa": (lambda q: n.packed_sdpa(q, kv, kv, spans), q5),
        "block_selection_attention": (lambda q: n.block_selection_attention(q, x, x, index), q4),
        "sliding_window": (lambda q: n.sliding_window(q, x, x, window=2)[0], q4),
        "compressed_attention": (
            lambda q: n.compressed_attention(q, x, x, block=2, stride=1)[0],
            q4,
        ),
        "with_scores": (lambda q: n.compressed_attention_with_scores(q, x, x)[0], q4),
        "nsa_attention": (
            lambda q: n.nsa_attention(q, x, x, q[..., :3], n_selected=3, window=2),
            q4,
        ),
        "NSAttention": (layer, randn(1, 9, 16)),
        "selection_rows": (lambda q: n.selection_rows(q, rows, rows)[0], q2),
        "selection_rows_per_head": (lambda q: n.selection_rows_per_head(q, rows, rows)[0], q2),
        "selection_varlen": (lambda q: n.selection_varlen(q, rows[0], rows[0], cu)[0], q2),
        "decode_compressed": (lambda q: n.decode_compressed(q, cache, cache)[0], q1),
        "decode_window": (lambda q: n.decode_window(q, cache, cache, window=2)[0], q1),
        "decode_selected": (lambda q: n.decode_selected(q, cache, cache, spans[:, 0])[0], q1),
        "decode_scores": (lambda q: n.decode_scores(q, cache, lse, 2), q1),
        "decode_step": (lambda q: n.decode_step(q, *[cache] * 4, gates), q1),
        "gated_sum": (lambda q: n.gated_sum(q, q, q, gates), q1),
        "select_blocks": (lambda q: n.select_blocks(q, 3), randn(1, 4, 1, 3)),
    }


BOTH_WAYS = list(calls())[:10]


@pytest.mark.parametrize("name", list(calls()))
@pytest.mark.parametrize("transform", ["grad", "vmap", "jvp"])
def test_transforms_of_functions_are_refused_by_a_sentence(name, transform) -> None:
    call, q = calls()[name]
    of = {
        "grad": lambda: torch.func.grad(lambda q: call(q).sum())(q),
        "vmap": lambda: torch.func.vmap(call)(q.unsqueeze(0)),
        "jvp": lambda: torch.func.jvp(call, (q,), (q,)),
    }
    with pytest.raises(RuntimeError, match=r": torch\.func cannot transform it; use"):
        of[transform]()


@pytest.mark.parametrize("name", BOTH_WAYS)
def test_a_second_derivative_is_refused_by_a_sentence(name) -> None:
    call, q = calls()[name]
    q = q.requires_grad_()
    out = call(q).square().sum()
    with pytest.raises(RuntimeError, match=r"no second derivative.* without create_graph"):
        torch.autograd.grad(out, q, create_graph=True)
    (grad,) = torch.autograd.grad(call(q).square().sum(), q)
    assert grad.shape == q.shape
