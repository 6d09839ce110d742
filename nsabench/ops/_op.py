"""Define what an op promises: its inputs, its float64 oracle and its compulsory work."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from nsabench.model.vocabulary import Direction, DType

if TYPE_CHECKING:
    from torch import Tensor

    from nsabench.model.case import Case

MOST = 1 << 53  # beyond any number of bytes or operations
# The limit keeps a product of two sizes within 64 bits.
Size = Annotated[int, Field(gt=0, le=1 << 24)]


class Shape(BaseModel):
    """The sizes of a case. Each op has a subclass, whose fields a matrix may name."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    @classmethod
    def describe(cls) -> str:
        shapes = [c for c in reversed(cls.__mro__) if issubclass(c, Shape) and c is not Shape]
        return " ".join(" ".join((vars(c)["__doc__"] or "").split()) for c in shapes).strip()


@dataclass(frozen=True)
class Work:
    """The least that any implementation must do: move `bytes_min` through memory, do `flops`."""

    bytes_min: int
    flops: int

    def __post_init__(self) -> None:
        for value in (self.bytes_min, self.flops):
            if type(value) is not int or not 0 <= value < MOST:
                raise ValueError(f"Work takes whole numbers from 0 to 2**53 - 1, not {value}")


@dataclass
class Inputs:
    """One set of arguments of an op: tensors in the order of its arguments, options by name."""

    tensors: dict[str, Tensor]
    options: dict[str, Any]
    # This seed chooses the queries that an oracle computes. No implementation receives it.
    sample_seed: int = 0

    def replaced(self, tensors: Mapping[str, Tensor] | None = None, **options: Any) -> Inputs:
        tensors = {**self.tensors, **(tensors or {})}
        return replace(self, tensors=tensors, options={**self.options, **options})


def draw_normal(dtype: str, device: str, seed: int) -> Callable[..., Tensor]:
    """Return a function from sizes to standard normal tensors of the dtype."""
    import torch

    generator = torch.Generator(device=device).manual_seed(seed)

    def draw(*size: int) -> Tensor:
        return torch.randn(size, dtype=getattr(torch, dtype), device=device, generator=generator)

    return draw


def by_device(*, cpu: tuple[str, ...], cuda: tuple[str, ...]) -> Mapping[str, tuple[str, ...]]:
    return MappingProxyType({"cpu": cpu, "cuda": cuda})


class Probe(NamedTuple):
    case: Case
    change: Callable[[Inputs], Inputs]


def extend_on_cpu(shapes: Mapping[str, tuple[str, ...]], *sizes: str) -> Mapping[str, Any]:
    """Append `sizes` to the shapes for a CPU, one to each. The shapes for a GPU stay the same."""
    extended = tuple(map(",".join, zip(shapes["cpu"], sizes, strict=True)))
    return by_device(cpu=extended, cuda=shapes["cuda"])


class Op(ABC):
    """An op. Subclasses are stateless; a module holds one instance, named `OP`.

    Every `shape` is an instance of `shape_model`. The process that plans and reports has no torch,
    so only methods that make tensors may import torch, inside the method.
    """

    name: ClassVar[str]
    # The first argument and the output have the case's dtype.
    arguments: ClassVar[tuple[str, ...]]
    # Tensors that only some distributions add, after `arguments`. Their default is None.
    optional: ClassVar[tuple[str, ...]] = ()
    options: ClassVar[tuple[str, ...]] = ()
    shape_model: ClassVar[type[Shape]]
    directions: ClassVar[tuple[Direction, ...]] = (Direction.FORWARD,)
    differentiable: ClassVar[tuple[str, ...]] = ()  # arguments with gradients
    # Whether the oracle of a large case computes only some queries, with NaN in the others.
    samples_queries: ClassVar[bool] = False
    length_axis: ClassVar[str] = "L"  # the size that `length` returns
    distributions: ClassVar[tuple[str, ...]]  # the first is the default
    # The shapes of `nsabench check`, by device, each such as "N=64,L=1024": a usual size and one
    # that no tile divides. A person waits for these, so they are few.
    check_shapes: ClassVar[Mapping[str, tuple[str, ...]]] = MappingProxyType({})

    def probes(self, case: Case) -> Mapping[str, Probe]:
        """Return untimed calls, by name, that a kernel of the case must also get right."""
        return {}

    def call_form(self, name: str) -> str:
        optional = [f"{argument}=None" for argument in self.optional]
        return f"{name}({', '.join([*self.arguments, *optional, '*', *self.options])})"

    def length(self, shape: Any) -> int:
        return int(getattr(shape, self.length_axis))

    def terms(self, shape: Any) -> int:
        """Return how many terms one output element sums; float32 errors grow with that number."""
        return self.length(shape)

    def logit(self, distribution: str) -> float:
        """Return the magnitude of the values whose exponential the op takes."""
        return 1.0

    @abstractmethod
    def work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Return the compulsory work of one call on the inputs that `draw` makes from this seed."""

    def backward_work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Return the work of a backward: by default a forward's, plus writing the gradients."""
        forward = self.work(shape, dtype, distribution, seed)
        written = self.differentiable_elements(shape) * dtype.itemsize
        return Work(forward.bytes_min + written, forward.flops)

    def step_work(self, shape: Any, dtype: DType, distribution: str, seed: int) -> Work:
        """Return the compulsory work of a forward and its backward, which share their reads."""
        forward = self.work(shape, dtype, distribution, seed)
        backward = self.backward_work(shape, dtype, distribution, seed)
        return Work(backward.bytes_min, forward.flops + backward.flops)

    def differentiable_elements(self, shape: Any) -> int:
        """Return how many elements all `differentiable` arguments have. Required for a backward."""
        raise NotImplementedError

    @abstractmethod
    def draw(self, shape: Any, dtype: DType, distribution: str, seed: int, device: str) -> Inputs:
        """Draw fresh inputs from `seed`, in the case's dtype, never zeros or constants."""

    @abstractmethod
    def oracle(self, inputs: Inputs) -> Tensor:
        """Compute the float64 result on the quantised values of `inputs`, in bounded memory."""

    def output_shape(self, inputs: Inputs) -> tuple[int, ...]:
        return tuple(inputs.tensors[self.arguments[0]].shape)

    def draw_grad(self, inputs: Inputs, seed: int) -> Tensor:
        """Draw a normal gradient of the output, of the first argument's dtype."""
        first = inputs.tensors[self.arguments[0]]
        normal = draw_normal(str(first.dtype).removeprefix("torch."), str(first.device), seed)
        return normal(*self.output_shape(inputs))

    def gradients(self, inputs: Inputs, grad_out: Tensor) -> dict[str, Tensor]:
        """Compute the float64 gradient of each `differentiable` argument, in bounded memory."""
        raise NotImplementedError

    def results(self, inputs: Inputs, grad_out: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Compute `oracle` and `gradients`. An op that can compute both at once overrides this."""
        return self.oracle(inputs), self.gradients(inputs, grad_out)
