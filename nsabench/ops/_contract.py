"""What an op promises: its inputs, its float64 oracle, its compulsory work, its tolerances.

The supervisor reads shapes and work from here, so nothing in this room imports torch at import
time; the methods that make tensors run in a worker and import it themselves.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import BaseModel, ConfigDict, Field

from nsabench.model.vocabulary import Direction, DType

if TYPE_CHECKING:
    from torch import Tensor

    from nsabench.ops._legal import Legal


# Beyond any device, and products of a few still fit 64 bits.
Size = Annotated[int, Field(gt=0, le=1 << 24)]


class Shape(BaseModel):
    """The sizes of a case. Each op subclasses it; its fields are the axes a matrix may name."""

    model_config = ConfigDict(extra="forbid", frozen=True)


def dv_is_d(given: object) -> object:
    """For a shape's `before` validator: Dv is D unless it is given."""
    if isinstance(given, dict) and "Dv" not in given and "D" in given:
        return {**given, "Dv": given["D"]}
    return given


@dataclass(frozen=True)
class Work:
    """The least that any implementation must do: `bytes_min` moved through memory, `flops` done."""

    bytes_min: int
    flops: int


@dataclass
class Inputs:
    """One set of arguments of an op: tensors by position, options by name."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]

    def fill_from(self, other: Inputs) -> None:
        """Overwrite this set's values in place, so that data changes and addresses do not."""
        for name, tensor in self.tensors.items():
            # Through `.data`, or a cache keyed on a tensor's version would know of the change.
            tensor.data.copy_(other.tensors[name])

    def clone(self) -> Inputs:
        return Inputs({name: t.clone() for name, t in self.tensors.items()}, dict(self.options))


class Op(ABC):
    """An op. Subclasses are stateless; one instance a module, named `OP`.

    The supervisor asks for sizes, work and lengths and has no torch: only `draw`, `oracle` and what
    else makes tensors import it, and themselves.
    """

    name: ClassVar[str]
    # The first has the case's dtype, and so has the output.
    arguments: ClassVar[tuple[str, ...]]
    # Tensors that some distributions add behind them; without, an implementation's default holds.
    optional: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    shape_model: ClassVar[type[Shape]]
    directions: ClassVar[tuple[Direction, ...]] = (Direction.FORWARD,)
    # What a backward case differentiates by, among `arguments`.
    differentiable: ClassVar[tuple[str, ...]] = ()
    # Whether its oracle names rows that nobody is held to (`_left_out`).
    leaves_rows_out: ClassVar[bool] = False
    # Whether, where the first axis of every argument has the same size, it counts rows that have
    # nothing to do with each other, so that a few of them are a problem of their own.
    rows_stand_alone: ClassVar[bool] = False
    # The size that `length` returns.
    length_axis: ClassVar[str] = "L"
    # The first is the default.
    distributions: ClassVar[tuple[str, ...]]
    # What `nsabench check` tries where no shape is given, by device ("cpu", "cuda"), each such as
    # "N=64,L=1024": usual sizes, and some that no tile divides; few, since a person waits.
    check_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def call_form(self, name: str) -> str:
        """How an implementation is called, for messages."""
        optional = [f"{argument}=None" for argument in self.optional]
        return f"{name}({', '.join([*self.arguments, *optional, '*', *self.options])})"

    @abstractmethod
    def length(self, shape: Shape) -> int:
        """What a threshold is decided on: the selected length L of a row, if not another size."""

    def terms(self, shape: Shape) -> int:
        """How many terms the sums behind one element of the output have together, at most: what an
        honest float32 result may be off by grows with their root. The length, if not overridden."""
        return self.length(shape)

    def drawn(self, shape: Shape) -> int:
        """How many numbers `work` draws, to count what must be read: of many it takes a while."""
        return 0

    @abstractmethod
    def work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """Compulsory bytes and FLOPs of one call on the inputs that `draw` makes of this seed."""

    def backward_work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """Compulsory bytes and FLOPs of one backward, if not overridden: what the forward moves,
        the gradient of the output in place of the output, and the gradients; no fewer FLOPs."""
        forward = self.work(shape, dtype, distribution, seed)
        written = self.differentiable_elements(shape) * dtype.itemsize
        return Work(forward.bytes_min + written, forward.flops)

    def step_work(self, shape: Shape, dtype: DType, distribution: str, seed: int) -> Work:
        """Compulsory work of a forward and the backward behind it: the arithmetic of both; what
        both read need come from memory once."""
        forward = self.work(shape, dtype, distribution, seed)
        backward = self.backward_work(shape, dtype, distribution, seed)
        return Work(backward.bytes_min, forward.flops + backward.flops)

    def differentiable_elements(self, shape: Shape) -> int:
        """Elements of the `differentiable` arguments together; an op with a backward has it."""
        raise NotImplementedError

    @abstractmethod
    def draw(self, shape: Shape, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        """Fresh inputs from `seed`, in the case's dtype, on `device`. Never zeros or constants."""

    @abstractmethod
    def oracle(self, inputs: Inputs) -> Tensor:
        """The float64 result on the quantised values of `inputs`, in bounded memory."""

    def legal(self, inputs: Inputs, oracle: Tensor) -> Legal | None:
        """Bounds of the rows that the oracle leaves out, where it knows some: they are held to
        these."""
        return None

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        """That of the first argument, if not overridden."""
        return tuple(inputs.tensors[self.arguments[0]].shape)

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        """A gradient of the output for a backward, normal, of the first argument's dtype."""
        from nsabench.ops import _draws

        first = inputs.tensors[self.arguments[0]]
        normal = _draws.normal(str(first.dtype).removeprefix("torch."), str(first.device), seed)
        return normal(*self.output_shape(inputs))

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        """The float64 gradient by each `differentiable` argument, in bounded memory; an op with a
        backward has it."""
        raise NotImplementedError

    def results(self, inputs: Inputs, grad_out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """`oracle` and `gradients`; an op that finds the one on its way to the other overrides
        it."""
        return self.oracle(inputs), self.gradients(inputs, grad_out)
