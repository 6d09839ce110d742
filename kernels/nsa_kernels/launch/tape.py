"""What a call does while it is recorded: the launches it makes, and the memory it asks for."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

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


class Tape:
    """A call as it is recorded. It holds all memory, so that no two allocations are one."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """``inputs``: no two of one storage."""
        self.memories = list(inputs)
        self.inputs = len(self.memories)
        self.launches: list[tuple[Launch, list[Place]]] = []
        self.complete = True
        self._by_storage = {
            x.untyped_storage()._cdata: number for number, x in enumerate(self.memories)
        }

    def allocated(self, x: torch.Tensor) -> None:
        """``x`` was allocated by ``empty``."""
        self._by_storage[x.untyped_storage()._cdata] = len(self.memories)
        self.memories.append(x)

    def note(self, made: Launch) -> None:
        """A launch was made."""
        places = [self.place(x) for x in made.pointers]
        found = [place for place in places if place is not None]
        self.complete = self.complete and len(found) == len(places)
        self.launches.append((made, found))

    def place(self, x: torch.Tensor) -> Place | None:
        """Where a tensor is; None: in memory that is not the call's, such as a copy by torch."""
        memory = self._by_storage.get(x.untyped_storage()._cdata)
        if memory is None:
            return None
        offset = x.data_ptr() - self.memories[memory].data_ptr()
        return Place(memory, offset, x.dtype, tuple(x.shape), x.stride())

    def only_launches_wrote(self) -> bool:
        """Whether torch wrote to no memory of the call: it counts what it writes."""
        return all(x._version == 0 for x in self.memories[self.inputs :])


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
    x = torch.empty_strided(tuple(size), _contiguous(size), dtype=dtype, device=device)
    tape = recording()
    if tape is not None:
        tape.allocated(x)
    return x


def _contiguous(size: Sequence[int]) -> tuple[int, ...]:
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
