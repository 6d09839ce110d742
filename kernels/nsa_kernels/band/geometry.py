"""Describe which keys a query sees: by numbers, or by tables made on the device."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..launch.device import on_its_device
from ..launch.sizes import cdiv
from .kernels.behind import queries_behind_kernel
from .kernels.geometry import band_tables_kernel


@dataclass(frozen=True, slots=True)
class Band:
    """The keys that a query sees. A key covers ``block`` tokens, and keys begin ``stride`` tokens
    apart. A query sees the last ``window`` (0: all) of the keys whose tokens are all at or before
    the query. Packed ``sequences``, and queries after cached tokens, have int32 tables. ``keys``
    [2,T] has the first key of each query, and the end of the query's keys. ``queries`` [2,N], for a
    backward, has for each key the first query that sees the key, and the end of these queries."""

    block: int
    stride: int
    window: int
    keys: torch.Tensor | None = None
    queries: torch.Tensor | None = None
    sequences: int = 1

    def constants(self) -> dict[str, int | bool]:
        return {**self.constants_of_one(), "PACKED": self.keys is not None}

    def constants_of_one(self) -> dict[str, int | bool]:
        """Return the constants of a kernel that takes no packed sequences."""
        return {"BLOCK": self.block, "STRIDE": self.stride, "WINDOWED": self.window > 0}


@on_its_device
def packed_band(
    q: torch.Tensor,
    keys: int,
    cu_seqlens: torch.Tensor,
    cu_keys: torch.Tensor,
    block: int,
    stride: int,
    window: int,
) -> Band:
    """Return the band of sequences that are packed in q [1,T,HQ,D] and in ``keys`` keys.

    Its tables are made on the device. A query after the last sequence sees no key. ``cu_keys`` is
    clamped to [0, ``keys``].
    """
    total = q.shape[1]
    of_query = torch.empty((2, total), dtype=torch.int32, device=q.device)
    of_key = torch.empty((2, keys), dtype=torch.int32, device=q.device)
    sequences = cu_seqlens.shape[0] - 1
    tile = 128
    band_tables_kernel[(max(1, cdiv(max(total, keys), tile)),)](
        *(cu_seqlens.contiguous(), cu_keys.contiguous()),
        *(of_query[0], of_query[1], of_key[0], of_key[1]),
        *(total, keys, sequences, window),
        BLOCK=block,
        STRIDE=stride,
        WINDOWED=window > 0,
        STEPS=sequences.bit_length(),
        TILE=tile,
        num_warps=4,
    )
    return Band(block, stride, window, of_query, of_key, sequences)


@dataclass(frozen=True, slots=True)
class Behind:
    """Queries that are the last tokens of their sequences, after ``first`` other tokens.

    Packed sequences have ``cu_queries`` and ``cu_tokens`` instead of ``first``. These are int32
    [sequences + 1], and say where the queries and the tokens of each sequence begin.
    """

    first: int
    cu_queries: torch.Tensor | None = None
    cu_tokens: torch.Tensor | None = None


@on_its_device
def band_behind(
    q: torch.Tensor,
    keys: int,
    behind: Behind,
    cu_keys: torch.Tensor | None,
    block: int,
    stride: int,
    window: int,
) -> Band:
    """Return the band of queries q [B,Tq,HQ,D] after cached tokens. This band has no backward."""
    total = q.shape[1]
    of_query = torch.empty((2, total), dtype=torch.int32, device=q.device)
    cu, tokens = behind.cu_queries, behind.cu_tokens
    sequences = 1 if cu is None else cu.shape[0] - 1
    tile = 128
    queries_behind_kernel[(max(1, cdiv(total, tile)),)](
        *(of_query if x is None else x.contiguous() for x in (cu, tokens, cu_keys)),
        *(of_query[0], of_query[1]),
        *(total, keys, sequences, behind.first if cu is None else 0, window),
        BLOCK=block,
        STRIDE=stride,
        WINDOWED=window > 0,
        PACKED=cu is not None,
        STEPS=max(1, sequences.bit_length()),
        TILE=tile,
        num_warps=4,
    )
    return Band(block, stride, window, of_query, None, sequences)


def tables_of(
    of: torch.Tensor | None, placeholder: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the two rows of a table of the band, or placeholders that no kernel reads."""
    return (placeholder, placeholder) if of is None else (of[0], of[1])
