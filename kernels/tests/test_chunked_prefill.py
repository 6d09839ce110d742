"""Queries behind cached keys: a prefill in chunks is the prefill in one (interpreter, or CUDA)."""

from __future__ import annotations

from itertools import accumulate, pairwise

import nsa_kernels
import pytest
import torch
from nsa_kernels.attention.naive import naive_nsa

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 3, "window": 20}


def inputs(t: int, b: int = 1) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(t)
    q, k, v = (torch.randn(b, t, h, 16, generator=generator) for h in (4, 2, 2))
    gates = torch.rand(b, t, 4, 3, generator=generator)
    return [x.to(DEVICE) for x in (q, k, v, gates)]


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def exact(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor) -> torch.Tensor:
    """The paper's formula in float64, of all tokens in one."""
    q, k, v, gates = (x.double() for x in (q, k, v, gates))
    means = [x.unfold(1, 8, 4).mean(-1) if x.shape[1] >= 8 else x[:, :0] for x in (k, v)]
    return naive_nsa(q, k, v, *means, gates, **SIZES)


def test_a_prefill_in_chunks_is_the_prefill_in_one() -> None:
    q, k, v, gates = inputs(60, b=2)
    edges = [0, 5, 6, 33, 60]  # before the first compressed key, one query, an edge of a block
    chunks = [
        nsa_kernels.nsa_attention(
            q[:, begin:end], k[:, :end], v[:, :end], gates[:, begin:end], **SIZES
        )
        for begin, end in pairwise(edges)
    ]
    got = torch.cat(chunks, 1)
    one = nsa_kernels.nsa_attention(q, k, v, gates, **SIZES)
    torch.testing.assert_close(got, one, atol=5e-5, rtol=5e-5)
    torch.testing.assert_close(got.double(), exact(q, k, v, gates), atol=5e-5, rtol=5e-5)


def test_packed_chunks_are_each_alone() -> None:
    lengths = [(5, 5), (3, 40), (0, 21), (1, 1), (7, 48), (2, 8)]  # queries, tokens
    given = [inputs(tokens) for _, tokens in lengths]
    alone = [
        exact(*x)[:, tokens - count :] for x, (count, tokens) in zip(given, lengths, strict=True)
    ]
    queries = [
        [x[i][:, tokens - count :] for x, (count, tokens) in zip(given, lengths, strict=True)]
        for i in (0, 3)
    ]
    nobody = [torch.full((1, 3, *x[0].shape[2:]), 9.0, device=DEVICE) for x in queries]
    q, gates = (torch.cat([*x, y], 1) for x, y in zip(queries, nobody, strict=True))
    k, v = (torch.cat([x[i] for x in given], 1) for i in (1, 2))
    cu = ints(*[sum(count for count, _ in lengths[:i]) for i in range(len(lengths) + 1)])
    cu_k = ints(*[sum(tokens for _, tokens in lengths[:i]) for i in range(len(lengths) + 1)])
    got = nsa_kernels.nsa_attention(q, k, v, gates, cu_seqlens=cu, cu_seqlens_k=cu_k, **SIZES)
    torch.testing.assert_close(got[:, :-3].double(), torch.cat(alone, 1), atol=5e-5, rtol=5e-5)
    assert not got[:, -3:].any()


def test_packed_sequences_of_queries_and_keys_alike_are_what_they_are_without() -> None:
    given, cu = inputs(40), ints(0, 23, 23, 40)
    want = nsa_kernels.nsa_attention(*given, cu_seqlens=cu, **SIZES)
    got = nsa_kernels.nsa_attention(*given, cu_seqlens=cu, cu_seqlens_k=cu.clone(), **SIZES)
    torch.testing.assert_close(got, want, atol=5e-5, rtol=5e-5)


def test_no_query_attends_to_the_keys_of_another_short_sequence() -> None:
    """Many of them lie within one tile of keys, one block and one window."""
    tokens = [1, 3, 0, 2, 5, 1, 4, 9, 1, 2]
    queries = [min(t, 1 + i % 3) for i, t in enumerate(tokens)]
    q, k, v, gates = inputs(sum(tokens))
    q, gates = q[:, : sum(queries)], gates[:, : sum(queries)]
    cu, cu_k = (ints(0, *accumulate(lengths)) for lengths in (queries, tokens))

    def attend(k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return nsa_kernels.nsa_attention(q, k, v, gates, cu_seqlens=cu, cu_seqlens_k=cu_k, **SIZES)

    want = attend(k, v)
    mine = torch.tensor([i % 2 == 0 for i in range(len(tokens))], device=DEVICE)
    of_keys = mine.repeat_interleave(torch.tensor(tokens, device=DEVICE))[None, :, None, None]
    of_queries = mine.repeat_interleave(torch.tensor(queries, device=DEVICE))
    got = attend(*(torch.where(of_keys, x, 9.0) for x in (k, v)))
    torch.testing.assert_close(got[:, of_queries], want[:, of_queries], atol=0, rtol=0)
    assert not torch.equal(got[:, ~of_queries], want[:, ~of_queries])


def test_queries_before_the_first_token_see_nothing() -> None:
    """A sequence of fewer keys than queries: the last queries are those of its keys."""
    q, k, v, gates = inputs(12)
    got = nsa_kernels.nsa_attention(
        q, k[:, :7], v[:, :7], gates, cu_seqlens=ints(0, 12), cu_seqlens_k=ints(0, 7), **SIZES
    )
    none = nsa_kernels.nsa_attention(
        q, k[:, :0], v[:, :0], gates, cu_seqlens=ints(0, 12), cu_seqlens_k=ints(0, 0), **SIZES
    )
    assert not got[:, :5].any() and not none.any()
    want = exact(q[:, 5:], k[:, :7], v[:, :7], gates[:, 5:])
    torch.testing.assert_close(got[:, 5:].double(), want, atol=5e-5, rtol=5e-5)


def test_one_graph_under_torch_compile() -> None:
    q, k, v, gates = inputs(20)
    cu, cu_k = ints(0, 1, 3), ints(0, 5, 20)

    def both(*x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        packed = nsa_kernels.nsa_attention(*x, cu_seqlens=cu, cu_seqlens_k=cu_k, **SIZES)
        return nsa_kernels.nsa_attention(*x, **SIZES), packed

    args = (q[:, -3:], k, v, gates[:, -3:])
    compiled = torch.compile(both, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(*args), both(*args), strict=True):
        assert torch.equal(a, b)


def test_a_gradient_is_not_lost_in_silence() -> None:
    q, k, v, gates = inputs(20)
    args = (q[:, -4:], k.requires_grad_(), v, gates[:, -4:])
    with pytest.raises(ValueError, match="nsa_attention: queries behind cached keys have no backw"):
        nsa_kernels.nsa_attention(*args, **SIZES)
    with torch.no_grad():
        assert not nsa_kernels.nsa_attention(*args, **SIZES).requires_grad


@pytest.mark.parametrize(
    ("queries", "cu", "cu_k", "error", "said"),
    [
        (21, None, None, ValueError, r"expected q \[B,Tq,HQ,D\]"),
        (4, None, [0, 20], ValueError, "cu_seqlens_k goes with cu_seqlens"),
        (4, [0, 4], [0, 9, 20], ValueError, "cu_seqlens and cu_seqlens_k differ in length"),
        (4, [0, 4], None, ValueError, "q has 4 tokens and k 20; packed .* cu_seqlens_k"),
        (4, [0, 4], [0.0, 20.0], TypeError, "cu_seqlens_k must be an int32 tensor"),
    ],
)
def test_queries_and_keys_that_do_not_fit_are_refused(queries, cu, cu_k, error, said) -> None:
    (q, _, _, gates), (_, k, v, _) = inputs(21), inputs(20)
    more = {}
    if cu is not None:
        more["cu_seqlens"] = ints(*cu)
    if cu_k is not None:
        of = torch.int32 if isinstance(cu_k[0], int) else torch.float32
        more["cu_seqlens_k"] = torch.tensor(cu_k, dtype=of, device=DEVICE)
    with pytest.raises(error, match=f"nsa_attention: .*{said}"):
        nsa_kernels.nsa_attention(q[:, :queries], k, v, gates[:, :queries], **more, **SIZES)


def test_a_gradient_with_the_offsets_of_all_tokens_is_told_the_remedy() -> None:
    args = [x.requires_grad_() for x in inputs(20)]
    cu = ints(0, 9, 20)
    with pytest.raises(ValueError, match="leave out cu_seqlens_k"):
        nsa_kernels.nsa_attention(*args, cu_seqlens=cu, cu_seqlens_k=cu.clone(), **SIZES)
    nsa_kernels.nsa_attention(*args, cu_seqlens=cu, **SIZES).sum().backward()
