"""``NSAttention``: a layer of Native Sparse Attention (arXiv 2502.11089, section 3).

The three branches share keys and values. Positions enter in two optional ways: by a rotary
embedding of queries and keys, and by the embedding of positions within a compressed block ("mlp").
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from math import isfinite
from numbers import Real

import torch
from torch import nn

from ..band.attend import check_cu
from ..launch.checks import MAX_BLOCKS, MAX_DIM, MIN_DIM, check_whole, require
from .cache import NSACache
from .compression import MeanCompression, MLPCompression
from .decode.api import decode_step
from .rotary import check_rotary, positions_of, rotate
from .whole import attend_whole, check_sizes, nsa_attention


def _are_three_numbers(gates: object) -> bool:
    return (
        isinstance(gates, Sequence)
        and len(gates) == 3
        and all(isinstance(x, Real) and isfinite(x) for x in gates)
    )


class NSAttention(nn.Module):
    """Compression, selection and window branches and their gated sum.

    Args:
        dim: size of the input and of the output.
        heads: number of query heads, HQ. kv_heads: number of key heads, H, which divides HQ.
        head_dim: D = Dv, 16..256.
        block, stride: tokens in a compressed key, and tokens from one key to the next.
        block_size: tokens in a selection block: 16, 32, 64 or 128. stride divides this and block.
        n_selected: how many blocks a query selects, three or more: the first, the last two, and
            those with the highest scores (of equal scores, the lowest index).
        window: keys of the window branch, 1 or more.
        compression: "mean" or "mlp".
        gates: fixed (compression, selection, window). None: learned, as sigmoid of a projection.
        rotary: base of a rotary embedding (arXiv 2104.09864) of queries and keys, over 1, commonly
            10000.0. Keys are rotated before they are compressed and cached. None: no embedding.

    Raises:
        ValueError: sizes do not fit together.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        block: int = 32,
        stride: int = 16,
        block_size: int = 64,
        n_selected: int = 16,
        window: int = 512,
        compression: str = "mean",
        gates: tuple[float, float, float] | None = None,
        rotary: float | None = None,
    ) -> None:
        super().__init__()
        for name, size in (
            ("dim", dim),
            ("heads", heads),
            ("kv_heads", kv_heads),
            ("head_dim", head_dim),
        ):
            check_whole("NSAttention", name, size, 1)
        require(
            MIN_DIM <= head_dim <= MAX_DIM,
            f"NSAttention: head_dim must be in {MIN_DIM}..{MAX_DIM}; got {head_dim}",
        )
        require(
            heads % kv_heads == 0,
            f"NSAttention: heads={heads} is not a multiple of kv_heads={kv_heads}",
        )
        require(
            compression in ("mean", "mlp"),
            f'NSAttention: compression is "mean" or "mlp"; got {compression!r}',
        )
        check_sizes("NSAttention", block, stride, block_size, n_selected, window)
        require(
            gates is None or _are_three_numbers(gates),
            "NSAttention: gates are three numbers, of compression, selection, window; "
            f"got {gates!r}",
        )
        if rotary is not None:
            check_rotary("NSAttention", rotary, head_dim)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.block, self.stride, self.block_size = block, stride, block_size
        self.n_selected, self.window = n_selected, window
        self.to_q = nn.Linear(dim, heads * head_dim, bias=False)
        self.to_k = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.to_v = nn.Linear(dim, kv_heads * head_dim, bias=False)
        self.to_out = nn.Linear(heads * head_dim, dim, bias=False)
        self.to_gates = nn.Linear(dim, heads * 3) if gates is None else None
        self.fixed_gates, self.rotary = gates, rotary
        self.compress_k, self.compress_v = (
            MeanCompression(block, stride)
            if compression == "mean"
            else MLPCompression(block, stride, head_dim)
            for _ in "kv"
        )

    def cache(self, room: int = 256) -> NSACache:
        """Return an empty cache for this layer. ``room``: tokens that fit before it must grow."""
        return NSACache(self.block, self.stride, room)

    def project(
        self, x: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return unrotated q [B,T,HQ,D], k, v [B,T,H,D], and gates [B,T,HQ,3] of x [B,T,dim]."""
        heads = (self.heads, self.kv_heads, self.kv_heads)
        q, k, v = (
            to(x).unflatten(-1, (h, self.head_dim))
            for to, h in zip((self.to_q, self.to_k, self.to_v), heads, strict=True)
        )
        if self.to_gates is None:
            assert self.fixed_gates is not None
            # Fill the gates on the device: a CUDA graph cannot capture a copy from the host.
            fixed = torch.stack([x.new_full((), gate) for gate in self.fixed_gates])
            gates = fixed.expand(*x.shape[:2], self.heads, 3)
        else:
            gates = torch.sigmoid(self.to_gates(x)).unflatten(-1, (self.heads, 3))
        return q, k, v, gates

    def forward(
        self,
        x: torch.Tensor,
        cache: NSACache | None = None,
        cu_seqlens: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """x [B,T,dim] -> [B,T,dim].

        Without a cache, x is a prefill. With an empty cache, x is a prefill that fills the cache.
        With a filled cache, x is a token to decode, or a chunk of a prefill, and has no gradient.
        With ``cu_seqlens``, int32 [sequences + 1], B = 1 and the sequences are packed along T. The
        values of cu_seqlens are never read on the host.

        Raises:
            ValueError: the cache has another block or stride. Or the cache is filled, autograd is
                on, and x or a weight of the projections requires a gradient. Or sequences are
                packed, and there is a cache or a compression other than the mean. An error leaves
                the cache unchanged.
        """
        require(
            cu_seqlens is None or cache is None,
            "NSAttention: a cache takes no packed sequences; give it one prompt a row of the batch",
        )
        dim = self.to_q.in_features
        require(
            x.dim() == 3 and x.shape[2] == dim,
            f"NSAttention: expected x [B,T,{dim}]; got {tuple(x.shape)}",
        )
        if cache is not None:
            require(
                (cache.block, cache.stride) == (self.block, self.stride),
                f"NSAttention: the layer compresses with block {self.block} and stride "
                f"{self.stride}, but the cache has block {cache.block} and stride "
                f"{cache.stride}; make it by layer.cache()",
            )
        q, k, v, gates = self.project(x)
        filled = cache is not None and cache.tokens > 0
        require(
            not (filled and torch.is_grad_enabled())
            or not any(part.requires_grad for part in (x, q, k, v, gates)),
            "NSAttention: decoding has no backward and x, or a weight, requires a gradient; call "
            "it under torch.no_grad()",
        )
        if self.rotary is not None:
            if cu_seqlens is not None:
                check_cu("NSAttention", "cu_seqlens", cu_seqlens, q)
            position = positions_of(x, 0 if cache is None else cache.tokens, cu_seqlens)
            q, k = rotate(q, position, self.rotary), rotate(k, position, self.rotary)
        with nullcontext() if cache is None else cache.undone_by_errors():
            if cache is not None:
                cache.append(k, v, self.compress_k, self.compress_v)
            out = (
                self._attend_cached(q, gates, cache)
                if filled
                else self._prefill(q, k, v, gates, cu_seqlens)
            )
        result: torch.Tensor = self.to_out(out.flatten(-2))
        return result

    def _sizes(self) -> dict[str, int]:
        return {
            "block": self.block,
            "stride": self.stride,
            "block_size": self.block_size,
            "n_selected": self.n_selected,
            "window": self.window,
        }

    def _prefill(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        gates: torch.Tensor,
        cu_seqlens: torch.Tensor | None,
    ) -> torch.Tensor:
        means = (self.compress_k, self.compress_v)
        if all(isinstance(x, MeanCompression) for x in means):
            return nsa_attention(q, k, v, gates, **self._sizes(), cu_seqlens=cu_seqlens)
        require(
            cu_seqlens is None,
            'NSAttention: packed sequences need compression="mean"; for an MLP, put each sequence '
            "in a row of the batch",
        )
        return attend_whole(q, k, v, self.compress_k(k), self.compress_v(v), gates, **self._sizes())

    @torch.no_grad()
    def _attend_cached(
        self, q: torch.Tensor, gates: torch.Tensor, cache: NSACache | None
    ) -> torch.Tensor:
        """Attend with the last tokens of a cache: one as a decode step, several as a prefill
        chunk."""
        assert cache is not None
        if q.shape[1] == 1:
            k, v, k_cmp, v_cmp = cache.room
            # Cut the capacity to what a step can select from, if all tokens fit into that.
            most = MAX_BLOCKS * self.block_size
            if cache.tokens <= most:
                k, v = k[:, :, :most], v[:, :, :most]
            out = decode_step(
                q[:, 0], k, v, k_cmp, v_cmp, gates[:, 0], cache.seqlens, **self._sizes()
            )
            return out.unsqueeze(1)
        held = (cache.k, cache.v, cache.k_cmp, cache.v_cmp)
        k, v, k_cmp, v_cmp = (x.transpose(1, 2) for x in held)
        return attend_whole(q, k, v, k_cmp, v_cmp, gates, **self._sizes())
