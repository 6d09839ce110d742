"""Tensors in a file that two processes map: one writes them, the other finds them in place."""

from __future__ import annotations

import mmap
import os
import stat
from collections.abc import Sequence
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from nsabench.execution.protocol import Sheet

ALIGNMENT = 64  # bytes; as torch's own allocator aligns them


class NoSheet(Exception):
    """A file does not hold what it should; the text says how."""


def lay_out(sets: Sequence[dict[str, Tensor]]) -> tuple[list[list[Sheet]], int]:
    """Where each tensor of each set goes, and the bytes of them all."""
    sheets, end = [], 0
    for tensors in sets:
        one = []
        for name, tensor in tensors.items():
            dtype = str(tensor.dtype).removeprefix("torch.")
            one.append(Sheet(name=name, dtype=dtype, shape=list(tensor.shape), offset=end))
            end += -(-tensor.nbytes // ALIGNMENT) * ALIGNMENT
        sheets.append(one)
    return sheets, max(end, ALIGNMENT)


def size_of(sheets: Sequence[Sequence[Sheet]]) -> int:
    """Bytes of a file that holds these sets, the last tensor the furthest behind."""
    last = sheets[-1][-1]
    taken: int = prod(last.shape) * getattr(torch, last.dtype).itemsize
    return max(last.offset + -(-taken // ALIGNMENT) * ALIGNMENT, ALIGNMENT)


def write(path: Path, sets: Sequence[dict[str, Tensor]]) -> list[list[Sheet]]:
    """Write tensors on the CPU to a new file; where each of them lies."""
    sheets, size = lay_out(sets)
    mapped = mapping(path, size, new=True)
    for tensors, one in zip(sets, sheets, strict=True):
        for sheet in one:
            tensor_of(mapped, sheet).copy_(tensors[sheet.name])
    return sheets


def mapping(path: Path, size: int, *, new: bool = False, private: bool = False) -> mmap.mmap:
    """A file of so many bytes as memory. private: what is written there does not reach the file.

    Raises `NoSheet` when it is another file than that.
    """
    flags = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    try:
        descriptor = os.open(path, flags | (os.O_CREAT | os.O_EXCL if new else 0), 0o600)
    except OSError as error:
        raise NoSheet(f"its file cannot be opened: {error.strerror}") from None
    try:
        if new:
            os.ftruncate(descriptor, size)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode) or found.st_size != size:
            raise NoSheet(f"its file has {found.st_size} bytes and should have {size}")
        return mmap.mmap(descriptor, size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
    finally:
        os.close(descriptor)


def tensor_of(mapped: mmap.mmap, sheet: Sheet) -> Tensor:
    """A tensor over the memory of a file; it keeps the mapping alive."""
    dtype, count = getattr(torch, sheet.dtype), prod(sheet.shape)
    if not count:
        return torch.empty(sheet.shape, dtype=dtype)
    flat = torch.frombuffer(mapped, dtype=dtype, count=count, offset=sheet.offset)
    return flat.view(sheet.shape)
