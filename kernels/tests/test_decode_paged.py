"""A paged cache: the bits of a contiguous one, whatever the order of its pages."""

from __future__ import annotations

import nsa_kernels
import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
LENGTHS = [0, 64, 65, 190]
ROOM, H = 192, 2
KEYS = (ROOM - 32) // 16 + 1
Tensors = tuple[torch.Tensor, ...]


def randn(*size: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    gen = torch.Generator().manual_seed(seed + sum(size))
    return torch.randn(*size, generator=gen).to(dtype).to(DEVICE)


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32, device=DEVICE)


def paged(x: torch.Tensor, page: int, heads_last: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """A contiguous cache [B, H, S, D] as a pool of pages in some order, and its block table. What
    is in pages of nobody are no numbers; ``heads_last``: as [pages, page, H, D] in memory."""
    b, h, s, d = x.shape
    n = s // page
    order = torch.randperm(b * n + 3, generator=torch.Generator().manual_seed(page))[: b * n]
    order = order.to(DEVICE)
    pool = x.new_full((b * n + 3, page, h, d), float("nan"))
    pool[order] = x.unflatten(2, (n, page)).permute(0, 2, 3, 1, 4).flatten(0, 1)
    pool = pool.transpose(1, 2)
    return pool if heads_last else pool.contiguous(), order.view(b, n).to(torch.int32)


def inputs(dtype: torch.dtype, hq: int) -> tuple[torch.Tensor, Tensors, Tensors]:
    b = len(LENGTHS)
    fine = (randn(b, H, ROOM, 32, dtype=dtype), randn(b, H, ROOM, 48, seed=1, dtype=dtype))
    compressed = (randn(b, H, KEYS, 32, dtype=dtype), randn(b, H, KEYS, 48, seed=1, dtype=dtype))
    return randn(b, hq, 32, dtype=dtype), fine, compressed


@pytest.mark.parametrize(
    ("page", "heads_last", "dtype", "n_selected"),
    [
        (64, False, torch.float32, 3),
        (16, True, torch.bfloat16, 3),  # pages smaller than a selection block
        (96, True, torch.float32, 70),  # no multiple of one; spans that are ordered beforehand
    ],
)
def test_pages_in_any_order_give_the_bits_of_a_contiguous_cache(
    page: int, heads_last: bool, dtype: torch.dtype, n_selected: int
) -> None:
    q, fine, compressed = inputs(dtype, 4)
    gates, lengths = torch.rand(len(LENGTHS), 4, 3, device=DEVICE), ints(*LENGTHS)
    pools = [paged(x, page, heads_last) for x in fine]
    k, v = (pool for pool, _ in pools)
    table = pools[0][1]
    for entry, n in enumerate(LENGTHS):  # nobody reads what is behind the last token
        table[entry, -(-n // page) :] = -(2**31) if entry % 2 else 2**31 - 1
    sizes = {"n_selected": n_selected, "window": 40}
    want = nsa_kernels.decode_step(q, *fine, *compressed, gates, lengths, **sizes)
    for given in (table, torch.cat([table, table], 1)[:, : table.shape[1]]):
        got = nsa_kernels.decode_step(q, k, v, *compressed, gates, lengths, given, **sizes)
        assert torch.equal(got, want) and bool(got.isfinite().all())
    near = nsa_kernels.decode_window(q, k, v, lengths, table, window=70)
    for a, b in zip(near, nsa_kernels.decode_window(q, *fine, lengths, window=70), strict=True):
        assert torch.equal(a, b)
    spans = ints(0, 30, 20, 100, 150, 999).view(1, 1, 3, 2).expand(len(LENGTHS), H, -1, -1)
    chosen = nsa_kernels.decode_selected(q, k, v, spans, lengths, table)
    for a, b in zip(chosen, nsa_kernels.decode_selected(q, *fine, spans, lengths), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("absent", "selected_len"),  # one share of a row, or several
    [(-1, 16), (-(2**31), None), (99999, 16), (2**31 - 1, None)],
)
def test_keys_of_a_page_that_is_not_there_are_not_attended_to(absent, selected_len) -> None:
    q, (k, v), _ = inputs(torch.float32, 4)
    (pool_k, table), (pool_v, _) = paged(k, 64, False), paged(v, 64, False)
    entry = LENGTHS.index(190)
    table[entry, 1] = absent
    table[LENGTHS.index(64)] = absent
    spans = ints(0, 190).view(1, 1, 1, 2).expand(len(LENGTHS), H, -1, -1)
    out, lse = nsa_kernels.decode_selected(
        q, pool_k, pool_v, spans, ints(*LENGTHS), table, selected_len=selected_len
    )
    around = ints(0, 64, 128, 190).view(1, 1, 2, 2).expand(len(LENGTHS), H, -1, -1)
    want, want_lse = nsa_kernels.decode_selected(q, k, v, around, ints(*LENGTHS))
    torch.testing.assert_close(out[entry], want[entry], atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse[entry], want_lse[entry], atol=1e-5, rtol=1e-5)
    alone = LENGTHS.index(64)
    assert not out[alone].any() and bool((lse[alone] == -torch.inf).all())


def test_a_long_row_without_a_page_gives_zero_and_no_lse() -> None:
    q, k = randn(1, 2, 32), randn(4, 1, 256, 32)
    spans, table = ints(0, 1024).view(1, 1, 1, 2), ints(-1, 4, 7, -9).view(1, 4)
    out, lse = nsa_kernels.decode_selected(q, k, k, spans, ints(1024), table)
    assert not out.any() and bool((lse == -torch.inf).all())
    table[0, 3] = 2
    out, lse = nsa_kernels.decode_selected(q, k, k, spans, ints(1024), table)
    want, want_lse = nsa_kernels.decode_window(q, k[2:3], k[2:3], window=256)
    torch.testing.assert_close(out, want, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(lse, want_lse, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    ("table", "lengths", "error", "said"),
    [
        (
            torch.zeros(2, 3),
            True,
            TypeError,
            "block_table must be an int32 tensor; got torch.float",
        ),
        ([[1], [2]], True, TypeError, "block_table must be an int32 tensor; got list"),
        (torch.zeros(2, 3).int(), False, ValueError, "a block_table goes with cache_seqlens"),
        (
            torch.zeros(3, 3).int(),
            True,
            ValueError,
            r"block_table must be \[2, pages of an entry\]",
        ),
        (torch.zeros(6).int(), True, ValueError, r"block_table must be \[2, pages of an entry\]"),
        (torch.zeros(2, 0).int(), True, ValueError, r"block_table must be .* got \[2, 0\]"),
    ],
)
def test_block_tables_that_do_not_fit_are_refused(table, lengths, error, said) -> None:
    q, pool, cmp, gates = randn(2, 2, 32), randn(5, 1, 16, 32), randn(2, 1, 3, 32), randn(2, 2, 3)
    table = table.to(DEVICE) if isinstance(table, torch.Tensor) else table
    of = ints(5, 9) if lengths else None
    spans = torch.zeros(2, 1, 1, 2, dtype=torch.int32, device=DEVICE)
    calls = {
        "decode_step": lambda: nsa_kernels.decode_step(q, pool, pool, cmp, cmp, gates, of, table),
        "decode_window": lambda: nsa_kernels.decode_window(q, pool, pool, of, table, window=4),
        "decode_selected": lambda: nsa_kernels.decode_selected(q, pool, pool, spans, of, table),
    }
    for op, call in calls.items():
        with pytest.raises(error, match=f"{op}: {said}"):
            call()


def test_a_pool_that_is_none_is_refused_with_its_shape() -> None:
    q, pool, cmp, gates = randn(2, 2, 32), randn(5, 16, 32), randn(2, 1, 3, 32), randn(2, 2, 3)
    table = torch.zeros(2, 3, dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=r"decode_step: expected .* k \[pages,H,page,D\]"):
        nsa_kernels.decode_step(q, pool, pool, cmp, cmp, gates, ints(5, 9), table)


def test_pages_go_into_one_graph_under_torch_compile() -> None:
    q, (k, v), compressed = inputs(torch.float32, 4)
    (pool_k, table), (pool_v, _) = paged(k, 64, False), paged(v, 64, False)
    gates, lengths = torch.rand(len(LENGTHS), 4, 3, device=DEVICE), ints(*LENGTHS)

    def step(lengths: torch.Tensor, table: torch.Tensor) -> Tensors:
        near, _ = nsa_kernels.decode_window(q, pool_k, pool_v, lengths, table, window=8)
        args = (q, pool_k, pool_v, *compressed, gates, lengths, table)
        return nsa_kernels.decode_step(*args, n_selected=3), near

    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    for a, b in zip(compiled(lengths, table), step(lengths, table), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize(("page", "pages"), [(0, 3), (1 << 20, 1 << 10)])
def test_a_room_that_cannot_be_counted_is_refused(page: int, pages: int) -> None:
    q, gates, cmp = randn(1, 2, 16), randn(1, 2, 3), randn(1, 1, 3, 16)
    pool = randn(1, 1, 1, 16).expand(1, 1, page, 16) if page else randn(1, 1, 0, 16)
    table, spans = ints(0).view(1, 1).expand(1, pages), ints(0, 4).view(1, 1, 1, 2)
    calls = {
        "decode_step": lambda: nsa_kernels.decode_step(
            q, pool, pool, cmp, cmp, gates, ints(4), table
        ),
        "decode_window": lambda: nsa_kernels.decode_window(q, pool, pool, ints(4), table, window=4),
        "decode_selected": lambda: nsa_kernels.decode_selected(
            q, pool, pool, spans, ints(4), table
        ),
    }
    for op, call in calls.items():
        with pytest.raises(
            ValueError, match=f"{op}: a cache has room for 1 to .*; got {page * pages}$"
        ):
            call()
