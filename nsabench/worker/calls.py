"""Make the calls of an implementation, and deliver to the checker what they return.

A call has an untimed part, then the timed part. For a step, the implementation and its backward are
timed, and for a backward only `torch.autograd.grad`. The untimed forward does not know the gradient
of the output, which differs from call to call, so it cannot compute the backward.

After a single call is checked, its output is overwritten with a mark. So no other implementation
can find and return the output, and a later write to the same memory is noticed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, TypeVar

import torch
from torch import Tensor

from nsabench.delivery import FACTORS, OUTPUT, Delivery
from nsabench.failure import Failure
from nsabench.machine.clock import now_s
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, Role, Status
from nsabench.registry import Implementation
from nsabench.worker import guard
from nsabench.worker.inputs import BITS, InputSets, poison

T = TypeVar("T")

# Delivers results in the op's order, and returns whether the checker finds them right.
Deliver = Callable[[Delivery, InputSets, Sequence[Tensor]], bool]

REJECTED = "its output is wrong"  # later replaced by the checker's reason
MARK = 0x5A5A


@dataclass(frozen=True)
class CallResult:
    """What a call returned. A backward got `grad_out`, the set's gradient times `factor`."""

    index: int
    values: dict[str, Any]
    factor: float = 1.0
    grad_out: Tensor | None = None
    output: Any = None  # the output of the forward, if `values` are gradients

    @property
    def results(self) -> dict[str, Any]:
        return self.values if self.grad_out is None else {**self.values, OUTPUT: self.output}


@dataclass(frozen=True)
class Ready:
    run: Callable[[], Any]  # the call as a user's code makes it
    answer: Callable[[Any], CallResult]  # makes a result from what `run` returned

    def __call__(self) -> CallResult:
        return self.answer(self.run())


def prepare_call(
    item: Implementation, direction: Direction, sets: InputSets, index: int, rng: Random
) -> Ready:
    """Do the untimed part of a call, and return the timed part. Raises `Failure`."""
    options, call = sets.sets[index].options, item.call
    if direction is Direction.FORWARD:
        # New tensors over the same memory, so that attributes set on them are dropped.
        tensors = [t.detach() for t in sets.sets[index].tensors.values()]
        return Ready(
            partial(call, *tensors, **options), lambda output: CallResult(index, {OUTPUT: output})
        )
    # New leaves over the same memory, without the hooks and attributes of an earlier call.
    leaves = {
        name: t.detach().requires_grad_(name in sets.wanted)
        for name, t in sets.sets[index].tensors.items()
    }
    wanted = [leaves[name] for name in sets.wanted]
    factor = rng.choice(FACTORS)
    grad_out = sets.grads[index] * factor

    def answer(gradients: tuple[Any, ...], output: Tensor) -> CallResult:
        values = dict(zip(sets.results, gradients, strict=True))
        return CallResult(index, values, factor, grad_out, output)

    if direction is Direction.STEP:

        def run() -> tuple[Any, tuple[Any, ...]]:
            out = call(*leaves.values(), **options)
            refuse_without_backward(out)
            return out, torch.autograd.grad(out, wanted, grad_out, allow_unused=True)

        return Ready(run, lambda returned: answer(returned[1], returned[0].detach()))
    out = call(*leaves.values(), **options)
    refuse_without_backward(out)
    output = out.detach()  # detached in the untimed part
    return Ready(
        partial(torch.autograd.grad, out, wanted, grad_out, allow_unused=True),
        partial(answer, output=output),
    )


def refuse_without_backward(out: Any) -> None:
    if not isinstance(out, Tensor) or not out.requires_grad:
        raise Failure(Status.UNSUPPORTED, "its output has no grad_fn, so it has no backward")


@dataclass(eq=False)
class Caller:
    """Calls an implementation on sets of inputs, or replays CUDA graphs of its calls."""

    item: Implementation
    case: Case
    sets: InputSets
    device: str
    rng: Random

    def __post_init__(self) -> None:
        self.called_s = 0.0  # time of guarded calls, compilation included
        self.was_right = False
        self.changed: dict[str, str] = {}  # descriptions of harmless settings that were set back
        self.graphs: list[tuple[torch.cuda.CUDAGraph, CallResult]] = []
        self._settings = guard.settings()  # before any call

    def prepare(self, index: int) -> Ready:
        if not self.graphs:
            return prepare_call(self.item, self.case.direction, self.sets, index, self.rng)
        graph, result = self.graphs[index]
        return Ready(graph.replay, lambda returned: result)

    def capture(self) -> None:
        if self.case.direction.differentiates:
            # Each call gets another gradient of the output, but a graph keeps its tensors.
            reason = f"a {self.case.direction} is not measured in CUDA graphs"
            raise Failure(Status.UNSUPPORTED, reason)
        try:
            self.guarded(self._capture)
        except Failure as failure:
            if failure.status is not Status.CRASHED:
                raise
            # The call worked before, so it does something that a graph cannot hold, such as a wait.
            reason = f"its call cannot be captured in a CUDA graph: {failure.reason}"
            raise Failure(Status.UNSUPPORTED, reason) from failure

    def _capture(self) -> None:
        graphs = []
        with guard.no_garbage():
            for index in range(len(self.sets)):
                graph, call = torch.cuda.CUDAGraph(), self.prepare(index)
                with torch.cuda.graph(graph):
                    result = call()
                graphs.append((graph, result))
        self.graphs = graphs

    def poison(self, index: int, stream: torch.cuda.Stream | None = None, calls: int = 1) -> None:
        """Fill with NaN the memory that a call on a stream will most likely write to."""
        if self.graphs:
            for value in self.graphs[index][1].values.values():
                value.fill_(float("nan"))
        # The allocator gives each stream its own memory. A kernel that always uses the default
        # stream gets memory there, which could by chance still hold an earlier right output.
        for where in dict.fromkeys((None, stream)):
            with use_stream(where):
                poison(self.sets.form, self.device, calls)

    def guarded(self, call: Callable[[], T]) -> T:
        """Make a call and wait for the device. Raises `Failure` or `DeviceLost`."""
        start = now_s()
        try:
            result = guard.guarded(call, self.device, self.item.name)
        except Failure as failure:
            guard.restore(self._settings)
            if failure.status is Status.UNSUPPORTED and self.was_right:
                # Otherwise an implementation could decline the cases in which it is slow.
                reason = f"it declined the case after a right answer: {failure.reason}"
                raise Failure(Status.CRASHED, reason) from failure
            raise
        finally:
            self.called_s += now_s() - start
        self.refuse_settings()
        return result

    def refuse_settings(self) -> None:
        """Set back changed settings. Raises `Failure` if one of them is harmful."""
        changes = guard.restore(self._settings)
        harmful = [words for name, words in changes.items() if name not in guard.HARMLESS]
        if harmful:
            raise Failure(Status.WRONG, f"it changed settings of the process: {'; '.join(harmful)}")
        if self.item.role is Role.CANDIDATE:
            self.changed |= changes

    def without_guard(self, prepared: Ready) -> Callable[[], CallResult]:
        """Return a call to be timed, which waits for the device only after an error."""

        def call() -> CallResult:
            try:
                return prepared()
            except BaseException as error:  # noqa: BLE001 - foreign code; its reason is kept
                failure = guard.classify(error)
            guard.restore(self._settings)
            # The guard finds out whether the device is lost.
            return self.guarded(partial(_raise, failure))

        return call


def _raise(failure: Failure) -> CallResult:
    raise failure


def use_stream(stream: torch.cuda.Stream | None) -> AbstractContextManager[Any]:
    return torch.cuda.stream(stream) if stream else nullcontext()


@dataclass
class Outputs:
    """Delivers the outputs of an implementation, and finds out if later calls overwrite them."""

    item: Implementation
    sets: InputSets
    deliver: Deliver
    rng: Random

    def __post_init__(self) -> None:
        # The sets of the last two calls.
        self._previous: int | None = None
        self._current: int | None = None
        # The marked results of the last checked call, of the first, and of one chosen at random.
        self._kept: list[Tensor] = []
        self._first: list[Tensor] = []
        self._chosen: list[Tensor] = []
        self._count = 0  # the number of checked calls that `_chosen` was chosen from

    def expect(self, index: int) -> None:
        self._previous, self._current = self._current, self.sets.ids[index]

    def expect_after(self, before: int | None) -> None:
        self._previous = None if before is None else self.sets.ids[before]

    def check(self, result: CallResult, when: str) -> None:
        """Check a result. Raises `Failure` for the first error. `when` says which call this was."""
        # Check all sets, since a call may write past its own inputs.
        changed = self.sets.find_change()
        if changed:
            self.sets.repair()
            raise Failure(Status.WRONG, f"{when}it changed {changed}")
        index = result.index
        given = dict(self.sets.sets[index].tensors)
        if result.grad_out is not None:
            given["grad_out"] = result.grad_out
            if not torch.equal(result.grad_out, self.sets.grads[index] * result.factor):
                raise Failure(Status.WRONG, f"{when}it changed the gradient it was given")
        returned = result.results
        results = [
            check_form(name, returned[name], shape, given)
            for name, shape in self.sets.form.results.items()
        ]
        delivery = Delivery(
            implementation=self.item.name,
            computes=self.item.computes,
            set=self.sets.ids[index],
            previous=self._previous,
            probe=self.sets.probe,
            factor=result.factor,
            when=when,
        )
        if not self.deliver(delivery, self.sets, results):
            raise Failure(Status.WRONG, REJECTED)

    def keep(self, result: CallResult) -> None:
        """Mark and keep results. Raises `Failure` if the last results have lost their mark."""
        self._refuse_overwritten(self._kept)
        self._kept = [_bits(tensor) for tensor in result.results.values()]
        with torch.inference_mode():  # its tensors cannot be changed outside of it
            for bits in self._kept:
                bits.fill_(MARK)
        # No control reuses its buffers, and the results of all controls would fill the memory.
        if self.item.role is Role.CONTROL:
            return
        if not self._first:
            self._first = self._kept
            return
        self._count += 1
        if self.rng.randrange(self._count) == 0:  # each is chosen with the same probability
            self._refuse_overwritten(self._chosen)
            self._chosen = self._kept

    def _refuse_overwritten(self, kept: list[Tensor]) -> None:
        if not all(bool((bits == MARK).all()) for bits in kept):
            self._kept, self._first, self._chosen = [], [], []
            reason = "a later call overwrote what an earlier one had returned"
            raise Failure(Status.WRONG, reason)

    def finish(self) -> None:
        """Raise `Failure` if a kept output was overwritten."""
        kept = [*self._kept, *self._first, *self._chosen]
        self._kept, self._first, self._chosen = [], [], []
        self._refuse_overwritten(kept)


def _bits(result: Any) -> Tensor:
    """Return the elements of a tensor as integers. An expanded dimension has length 1."""
    elements: Tensor = result.detach().data
    for dim, stride in enumerate(elements.stride()):
        if stride == 0 and elements.shape[dim] > 1:
            elements = elements.narrow(dim, 0, 1)
    return elements.view(BITS[elements.element_size()])


def check_form(name: str, output: Any, shape: Sequence[int], given: dict[str, Tensor]) -> Tensor:
    """Return a result as a plain tensor. Raises `Failure` (wrong) if the op may not return it."""
    if output is None:
        raise Failure(Status.WRONG, f"it gives no {name}")
    if type(output) is not torch.Tensor:
        raise Failure(
            Status.WRONG,
            f"it returned as {name} a {type(output).__name__}, not a plain torch.Tensor",
        )
    first = next(iter(given.values()))
    for what, actual, expected in (
        ("shape", tuple(output.shape), tuple(shape)),
        ("dtype", output.dtype, first.dtype),
        ("device", output.device.type, first.device.type),
        ("layout", output.layout, first.layout),  # a sparse tensor has no storage
    ):
        if actual != expected:
            raise Failure(Status.WRONG, f"its {name} has {what} {actual}; the op's is {expected}")
    if output.is_neg():  # a kernel that reads its memory would see the other sign
        raise Failure(Status.WRONG, f"its {name} is a view with the negative bit set")
    storage = output.untyped_storage().data_ptr()
    for argument, tensor in given.items():
        if storage == tensor.untyped_storage().data_ptr():
            raise Failure(Status.WRONG, f"its {name} shares memory with its input {argument}")
    return output
