"""The cache of a Native Sparse Attention layer: keys, values and their compressed forms."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch

from ..launch.checks import check_whole, require

Compress = Callable[[torch.Tensor], torch.Tensor]


def _to_keep() -> AbstractContextManager[Any]:
    """Leave inference mode: tensors that are made in this mode cannot be written to outside it."""
    return torch.inference_mode(False) if torch.is_inference_mode_enabled() else nullcontext()


class NSACache:
    """Keys and values [B, H, capacity, ...] of which the first ``tokens`` are filled.

    New keys are written after the earlier ones. If they do not fit, the capacity becomes twice the
    number of keys. ``k``, ``v``, ``k_cmp`` and ``v_cmp`` are views of the filled part. A decode
    step takes ``room`` and ``seqlens``, whose shapes change only with the capacity.
    """

    def __init__(self, block: int = 32, stride: int = 16, room: int = 256) -> None:
        for name, size in (("block", block), ("stride", stride), ("room", room)):
            check_whole("NSACache", name, size, 1)
        require(
            block % stride == 0,
            f"NSACache: stride must divide block; got stride={stride}, block={block}",
        )
        self.block, self.stride, self._room = block, stride, room
        self.tokens = self.compressed = 0
        self._buffers: dict[str, torch.Tensor] = {}
        self._seqlens: torch.Tensor | None = None

    @property
    def k(self) -> torch.Tensor:
        return self._held("k", self.tokens)

    @property
    def v(self) -> torch.Tensor:
        return self._held("v", self.tokens)

    @property
    def k_cmp(self) -> torch.Tensor:
        return self._held("k_cmp", self.compressed)

    @property
    def v_cmp(self) -> torch.Tensor:
        return self._held("v_cmp", self.compressed)

    @property
    def room(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return the full buffers of k, v, k_cmp and v_cmp, [B, H, capacity, ...]."""
        k, v, k_cmp, v_cmp = (self._buffer(name) for name in ("k", "v", "k_cmp", "v_cmp"))
        return k, v, k_cmp, v_cmp

    @property
    def seqlens(self) -> torch.Tensor:
        """Return ``tokens`` once for each batch entry, as int32 [B] on the device."""
        k = self._buffer("k")
        with _to_keep():
            if self._seqlens is None:
                self._seqlens = torch.empty(k.shape[0], dtype=torch.int32, device=k.device)
            return self._seqlens.fill_(self.tokens)

    def _buffer(self, name: str) -> torch.Tensor:
        buffer = self._buffers.get(name)
        if buffer is None:
            raise ValueError(f"NSACache: nothing was appended yet, so there is no {name}")
        return buffer

    def _held(self, name: str, filled: int) -> torch.Tensor:
        return self._buffer(name)[:, :, :filled]

    @torch.no_grad()
    def append(
        self, k: torch.Tensor, v: torch.Tensor, compress_k: Compress, compress_v: Compress
    ) -> None:
        """Append k [B, T, H, D] and v [B, T, H, Dv], and compress the blocks that they complete.

        Args:
            compress_k, compress_v: functions that compress [B, L, H, ...] to
                [B, (L - block) // stride + 1, H, ...].

        Raises:
            ValueError: tensors do not fit the cache in sizes, dtype or device, k and v have
                different numbers of tokens, or a compress function returns another shape. The cache
                then stays as it was.
        """
        with self.undone_by_errors():
            self._append(k, v, compress_k, compress_v)

    def _append(
        self, k: torch.Tensor, v: torch.Tensor, compress_k: Compress, compress_v: Compress
    ) -> None:
        if k.dim() != 4 or v.dim() != 4 or k.shape[:3] != v.shape[:3]:
            raise ValueError(
                f"NSACache: k {tuple(k.shape)} and v {tuple(v.shape)} are not of the same tokens, "
                "[B,T,H,D] and [B,T,H,Dv]"
            )
        for name, x in (("k", k), ("v", v)):
            held = self._buffers.get(name)
            if held is not None and (
                held.shape[:2] != (x.shape[0], x.shape[2])
                or held.shape[3] != x.shape[3]
                or (held.dtype, held.device) != (x.dtype, x.device)
            ):
                raise ValueError(
                    f"NSACache: it holds {tuple(held.shape)} {held.dtype} on {held.device}, so "
                    f"{name} {tuple(x.shape)} {x.dtype} on {x.device} needs a new cache"
                )
            self._write(name, x, self.tokens)
        self.tokens += k.shape[1]
        complete = max(0, (self.tokens - self.block) // self.stride + 1)
        if complete > self.compressed or "k_cmp" not in self._buffers:
            span = slice(self.compressed * self.stride, (complete - 1) * self.stride + self.block)
            for name, of, compress in (
                ("k", self.k, compress_k),
                ("v", self.v, compress_v),
            ):
                new = of[:, :, span].transpose(1, 2)
                if complete > self.compressed:
                    done = compress(new)
                    self._check_compressed(f"compress_{name}", new, done, complete)
                else:
                    done = new[:, :0]
                self._write(f"{name}_cmp", done, self.compressed)
            self.compressed = complete

    def _check_compressed(
        self, name: str, of: torch.Tensor, done: torch.Tensor, complete: int
    ) -> None:
        # If a key were missing, uninitialised memory would be read as a key.
        want = (of.shape[0], complete - self.compressed, *of.shape[2:])
        require(
            done.shape == want,
            f"NSACache: {name} must return {want[1]} compressed keys {want} of {of.shape[1]} "
            f"tokens, block {self.block} and stride {self.stride}; it returned {tuple(done.shape)}",
        )

    @contextmanager
    def undone_by_errors(self) -> Iterator[None]:
        """If the ``with`` block raises, forget what it has appended."""
        tokens, compressed, buffers = self.tokens, self.compressed, dict(self._buffers)
        done = False
        try:
            yield
            done = True
        finally:
            if not done:
                # An append overwrites no earlier token, so the earlier state is still valid.
                self.tokens, self.compressed, self._buffers = tokens, compressed, buffers

    def _write(self, name: str, x: torch.Tensor, start: int) -> None:
        end = start + x.shape[1]
        held = self._buffers.get(name)
        if held is None or end > held.shape[2]:
            room = max(self._room, 2 * end if held is not None else end)
            with _to_keep():
                larger = x.new_empty(x.shape[0], x.shape[2], room, x.shape[3])
            if held is not None:
                larger[:, :, :start] = held[:, :, :start]
            self._buffers[name] = held = larger
        held[:, :, start:end] = x.transpose(1, 2)
