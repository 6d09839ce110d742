"""Hand the output of a call from the worker to the checker, in memory that both map.

The supervisor, which has no torch, imports this module to pass on the messages. So torch is
imported inside functions only.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator, Sequence
from math import prod
from typing import TYPE_CHECKING, Literal

from nsabench.model.case import Case
from nsabench.model.measurement import Message, Whole
from nsabench.model.vocabulary import DType

if TYPE_CHECKING:
    from torch import Tensor

    from nsabench.ops import Inputs, Probe

OUTPUT = "output"
ALIGNMENT = 64  # each result begins at a multiple of this many bytes
MAILBOX = 64  # the descriptor of the memory in a forked worker or checker
# Before a call, the gradient of the output is multiplied by one of these factors. The products are
# exact in every dtype, and the gradients of the inputs change by the same factor.
FACTORS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0)
# The seed of a set of inputs plus this number is the seed of the set's gradient of the output.
GRADIENT_SEED = 104729


class Form(Message):
    """The results of a call: their shapes by name, gradients (`dq`) before `output`."""

    sets: Whole  # how many sets of inputs there are
    dtype: DType
    results: dict[str, list[int]]

    @property
    def nbytes(self) -> int:
        return sum(map(self._count_bytes, self.results.values()))

    def places(self) -> Iterator[tuple[int, int, list[int]]]:
        """Yield the offset in bytes, the number of bytes and the shape of each result."""
        begin = 0
        for shape in self.results.values():
            yield begin, prod(shape) * self.dtype.itemsize, shape
            begin += self._count_bytes(shape)

    def _count_bytes(self, shape: list[int]) -> int:
        return -(-prod(shape) * self.dtype.itemsize // ALIGNMENT) * ALIGNMENT


class Delivery(Message):
    """The results of one call are in the shared memory."""

    kind: Literal["delivery"] = "delivery"
    implementation: str
    computes: str
    set: Whole  # the number of the set of inputs
    previous: Whole | None = None  # the set of the previous call
    probe: str = ""  # the name of one of `Op.probes`; empty for inputs of the case
    factor: float = 1.0  # multiplies the gradient of the output
    when: str = ""  # names the call in a reason ("in a timed call, ")


class Mailbox:
    """Memory for the results of one call. `descriptor` is inherited, and made by `memfd_create`."""

    def __init__(self, descriptor: int, device: str) -> None:
        self._descriptor = descriptor
        self._is_cuda = device == "cuda"
        self._mapped: mmap.mmap | None = None
        self._bytes: Tensor | None = None

    def map(self, nbytes: int) -> None:
        """Map `nbytes` bytes. For a GPU, register them, so that copies run at full speed."""
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
        for place, result in zip(self._list_places(form), results, strict=True):
            if place.numel():
                place.copy_(result.detach())

    def take(self, form: Form, device: str) -> dict[str, Tensor]:
        """Return copies of the results by name, and erase the memory."""
        places = [place.to(device, copy=True) for place in self._list_places(form)]
        if self._bytes is not None:
            self._bytes[: form.nbytes].zero_()  # so that the next implementation cannot read it
        return dict(zip(form.results, places, strict=True))

    def _list_places(self, form: Form) -> list[Tensor]:
        import torch

        dtype, tensors = getattr(torch, form.dtype), []
        for begin, nbytes, shape in form.places():
            if self._bytes is None or not nbytes:
                tensors.append(torch.empty(shape, dtype=dtype))
            else:
                tensors.append(self._bytes[begin : begin + nbytes].view(dtype).view(shape))
        return tensors


def draw(
    case: Case, seed: int, device: str, probe: Probe | None = None
) -> tuple[Inputs, Tensor | None]:
    """Draw inputs and, except for a forward, the output's gradient: the same in every process."""
    from nsabench import ops

    op = ops.get(case.op)
    case = probe.case if probe else case
    inputs = op.draw(ops.sizes(case), case.dtype, case.distribution, seed, device)
    inputs = probe.change(inputs) if probe else inputs
    if not case.direction.differentiates:
        return inputs, None
    return inputs, op.draw_grad(inputs, seed + GRADIENT_SEED)
