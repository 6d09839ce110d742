"""How the output of a call gets from the worker that made it to the checker that judges it.

The worker copies the output into memory that both processes map, and sends a `Delivery` that says
what the output is of. This module imports no torch when it is imported: the supervisor, which
passes the messages on, reads it.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal

from nsabench.model.case import Case
from nsabench.model.measurement import Message, Whole
from nsabench.model.vocabulary import DType

if TYPE_CHECKING:
    from torch import Tensor

OUTPUT = "output"
ALIGNMENT = 64  # bytes
# A gradient of the output is multiplied by one of these before a call. They are exact in every
# format, and gradients are linear in it.
FACTORS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
# A gradient of the output is drawn from another seed than the inputs of any set.
GRADIENT_SEED = 104729


class Form(Message):
    """The form of the results of a call.

    results: the shape of each result by name: a gradient (`dq`) for each input that the case
      differentiates by, then `output`. All have the dtype of the case.
    """

    sets: Whole  # how many sets of inputs there are
    dtype: DType
    results: dict[str, list[int]]

    @property
    def nbytes(self) -> int:
        """Bytes of shared memory that the results of one call take."""
        return sum(map(self._room, self.results.values()))

    def places(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield the place of each result in the shared memory: first byte, bytes, shape."""
        begin = 0
        for shape in self.results.values():
            yield begin, prod(shape) * self.dtype.itemsize, shape
            begin += self._room(shape)

    def _room(self, shape: list[int]) -> int:
        return -(-prod(shape) * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT


class Delivery(Message):
    """The results of one call are in the shared memory.

    - set: the inputs of the call; previous: those of the call before it, if there was one.
    - factor: multiplies the gradient of the output.
    - when: names the call in a reason ("in a timed call, ").
    """

    kind: Literal["delivery"] = "delivery"
    implementation: str
    computes: str
    set: Whole
    previous: Whole | None = None
    factor: float = 1.0
    when: str = ""


class Mailbox:
    """Shared memory that holds the results of one call.

    descriptor: an anonymous file (`memfd_create`) that the worker and the checker inherit.
    """

    def __init__(self, descriptor: int, device: str) -> None:
        self._descriptor = descriptor
        self._is_cuda = device == "cuda"
        self._mapped: mmap.mmap | None = None
        self._bytes: Tensor | None = None

    def map(self, nbytes: int) -> None:
        """Map so many bytes. On a GPU they are registered, so that copies run at full speed."""
        import torch

        self.close()
        if not nbytes:
            return
        if os.fstat(self._descriptor).st_size < nbytes:
            os.ftruncate(self._descriptor, nbytes)
        self._mapped = mmap.mmap(self._descriptor, nbytes)
        self._bytes = torch.frombuffer(self._mapped, dtype=torch.uint8)
        if self._is_cuda:
            torch.cuda.cudart().cudaHostRegister(self._bytes.data_ptr(), nbytes, 0)

    def close(self) -> None:
        if self._bytes is not None and self._is_cuda:
            import torch

            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())
        self._bytes = self._mapped = None

    def put(self, form: Form, results: Sequence[Tensor]) -> None:
        """Copy the results of a call into the shared memory; return when they are there."""
        for place, result in zip(self._places(form), results, strict=True):
            if place.numel():
                place.copy_(result.detach())

    def take(self, form: Form, device: str) -> dict[str, Tensor]:
        """Return copies of the results on the device, by name.

        The memory is erased, since the next implementation could read it.
        """
        places = [place.to(device, copy=True) for place in self._places(form)]
        if self._bytes is not None:
            self._bytes[: form.nbytes].zero_()
        return dict(zip(form.results, places, strict=True))

    def _places(self, form: Form) -> list[Tensor]:
        import torch

        dtype, found = getattr(torch, form.dtype), []
        for begin, nbytes, shape in form.places():
            if self._bytes is None or not nbytes:
                found.append(torch.empty(shape, dtype=dtype))
            else:
                found.append(self._bytes[begin : begin + nbytes].view(dtype).view(shape))
        return found


def draw(case: Case, seed: int, device: str) -> tuple[Any, Tensor | None]:
    """Return the inputs of a set (`ops.Inputs`), and the gradient of their output, if any.

    A seed gives the same bits in every process on one device.
    """
    from nsabench import ops

    op = ops.get(case.op)
    inputs = op.draw(ops.sizes(case), case.dtype, case.distribution, seed, device)
    if not case.direction.differentiates:
        return inputs, None
    return inputs, op.draw_grad(inputs, seed + GRADIENT_SEED)
