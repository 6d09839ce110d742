"""What a call does while it is recorded: the launches it makes, and the memory it asks for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch.multiprocessing.reductions import StorageWeakRef

if TYPE_CHECKING:
    from .launcher import Launch


class Place(NamedTuple):
    """Where a tensor is: in which memory (the inputs, then what was allocated), how many bytes
    behind its start, and how it is laid out."""

    memory: int
    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]


class Memory(NamedTuple):
    """What was allocated: where it began, and how it was laid out."""

    start: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device
    bytes: int


class Tape:
    """A call as it is recorded. Memory that the call lets go of is not held here."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """``inputs``: no two of one storage, alive until the call ends."""
        self.memories: list[Memory] = []
        self.launches: list[tuple[Launch, list[Place]]] = []
        self.complete = True
        self._by_storage: dict[int, int] = {}
        # While one of these is there, no other storage gets the number of one that is gone.
        self._names: list[StorageWeakRef] = []
        for x in inputs:
            self.allocated(x)
        self.inputs = len(self.memories)

    def allocated(self, x: torch.Tensor) -> None:
        """``x`` was allocated by ``empty``."""
        storage = x.untyped_storage()
        self._by_storage[storage._cdata] = len(self.memories)
        self._names.append(StorageWeakRef(storage))
        room = x.numel() * x.element_size()
        self.memories.append(
            Memory(x.data_ptr(), tuple(x.shape), x.stride(), x.dtype, x.device, room)
        )

    def note(self, made: Launch, pointers: Sequence[torch.Tensor]) -> None:
        """A launch was made on ``pointers``."""
        found = [self.place(x) for x in pointers]
        places = [place for place in found if place is not None]
        self.complete = self.complete and len(found) == len(places)
        self.launches.append((made, places))

    def place(self, x: torch.Tensor) -> Place | None:
        """Where a tensor is; None: in memory that is not the call's, such as a copy by torch, or in
        memory that torch has written to, which it counts."""
        memory = self._by_storage.get(x.untyped_storage()._cdata)
        if memory is None or (memory >= self.inputs and x._version > 0):
            return None
        offset = x.data_ptr() - self.memories[memory].start
        return Place(memory, offset, x.dtype, tuple(x.shape), x.stride())


_of_thread = threading.local()


def recording() -> Tape | None:
    """The tape that this thread's call is recorded on, if it is."""
    tape: Tape | None = getattr(_of_thread, "tape", None)
    return tape


def record_on(tape: Tape | None) -> None:
    """From now on this thread's launches and allocations are noted on ``tape``."""
    _of_thread.tape = tape


def empty(size: Sequence[int], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Contiguous memory that nobody has written, for kernels to write.

    What a replayed call allocates otherwise, and launches kernels on, keeps it from being replayed.
    """
    x = torch.empty_strided(tuple(size), contiguous(size), dtype=dtype, device=device)
    tape = recording()
    if tape is not None:
        tape.allocated(x)
    return x


def contiguous(size: Sequence[int]) -> tuple[int, ...]:
    """The strides of contiguous memory of this size."""
    strides: list[int] = []
    step = 1
    for n in reversed(size):
        strides.append(step)
        step *= max(n, 1)
    return tuple(reversed(strides))


def view(of: torch.Tensor, place: Place) -> torch.Tensor:
    """The tensor at a place in the memory that begins where ``of`` does."""
    elements, rest = divmod(place.offset, place.dtype.itemsize)
    assert rest == 0
    if of.dtype != place.dtype:
        of = of.view(place.dtype)
    return of.as_strided(place.size, place.stride, of.storage_offset() + elements)


def tensors_of(result: Any) -> tuple[torch.Tensor, ...] | None:
    """The tensors of a result: one, or a tuple of them; None for anything else."""
    if isinstance(result, torch.Tensor):
        return (result,)
    if type(result) is tuple and all(isinstance(x, torch.Tensor) for x in result):
        return result
    return None
