"""Calls whose work on the host is done once a signature, and only replayed from then on.

    @replayed
    def _forward(q, k, v, sm_scale):
        ...check, choose tiles...
        out = empty(size, dtype, device)
        launch(kernel, grid, q, k, v, out, ...)
        return out

The first call of a signature is run as it is; the second as well, and on the way each launch and
each allocation is noted (``tape``). From the third on only those are done: results are allocated,
everything else the call needs is one allocation, and the compiled kernels are called on addresses.

A signature holds all that such a function may look at: of each tensor the shape, strides, dtype,
device and alignment; the other arguments themselves. The values of tensors it must not read. A
call that does more than launch kernels on its arguments and on memory from ``empty`` (torch copies,
fills or sorts something) is noticed, and never replayed. Nor is a call of which a gradient is
wanted, one while somebody watches launches (``jit.direct``), one under a transform of torch.func,
or one with arguments that are no plain tensors, numbers or None: those run as they are. Instead of
a negative view goes what it stands for.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar

import torch

from ..jit.compat import INTERPRETED
from ..jit.direct import AVAILABLE, PACKS, current_stream, undisturbed
from .boxes import as_triton_takes, described
from .device import on_its_device
from .launcher import Launch
from .negative import resolved
from .tape import Memory, Place, Tape, contiguous, record_on, recording, tensors_of, view

P = ParamSpec("P")
T = TypeVar("T")

MOST = 1024
"""Signatures a function remembers; with one more it forgets all."""
ALIGNMENT = 256
"""Bytes, of parts of a workspace."""
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_PLAIN = frozenset((int, float, bool, type(None)))
_ONCE, _NEVER = object(), object()
"""Signatures that were seen once, and that cannot be replayed."""


def replayed(function: Callable[P, T]) -> Callable[P, T]:
    """Decorates a function of tensors and numbers that returns a tensor or a tuple of them.

    It runs on the device of its first tensor.
    """
    as_it_is = on_its_device(function)
    if not (AVAILABLE or INTERPRETED):
        return as_it_is
    programs: dict[tuple[Any, ...], Any] = {}

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs or torch._C._are_functorch_transforms_active() or recording() is not None:
            return as_it_is(*args, **kwargs)
        grad = torch.is_grad_enabled()
        key: list[Any] = []
        addresses: list[int] = []
        low = 0
        device = -2
        x: Any
        for x in args:
            of = x.__class__
            if of in _TENSORS:
                if grad and x.requires_grad:
                    return as_it_is(*args, **kwargs)
                if x.is_neg():
                    again: Any = call
                    found: T = again(*[resolved(y) if y.__class__ in _TENSORS else y for y in args])
                    return found
                there = x.get_device()
                if there < 0 and not x.is_cpu:
                    return as_it_is(*args, **kwargs)
                key.append((x.shape, x.stride(), x.dtype, there))
                address = x.data_ptr()
                low |= address
                addresses.append(address)
                if device == -2:
                    device = there
            elif of in _PLAIN:
                key.append(of)  # 1, 1.0 and True are equal
                key.append(x)
            else:
                return as_it_is(*args, **kwargs)
        # Tensors of torch begin at multiples of 512 bytes: most calls are aligned.
        key.append(None if low & 15 == 0 else tuple([x & 15 for x in addresses]))
        signature = tuple(key)
        program = programs.get(signature)
        if program is None or program is _NEVER or not undisturbed():
            if program is None:
                if len(programs) >= MOST:
                    programs.clear()
                programs[signature] = _ONCE
            return as_it_is(*args, **kwargs)
        if program is _ONCE:
            programs[signature] = _NEVER  # should the call raise
            result, program = record(as_it_is, args)
            programs[signature] = program or _NEVER
            return result
        if device < 0 or device == torch.cuda.current_device():
            return program(args, addresses)
        with torch.cuda.device(device):
            return program(args, addresses)

    call.programs = programs  # type: ignore[attr-defined]
    return call


def record(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Program | None]:
    """What a call gives, and what it did, to be done again; None if that cannot be."""
    storages: set[int] = set()
    own: list[Any] = []
    for x in args:
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()._cdata
            # Whose a pointer is must be plain, also where q, k and v are parts of one tensor.
            own.append(_of_its_own(x) if storage in storages else x)
            storages.add(storage)
        else:
            own.append(x)
    tape = Tape([x for x in own if isinstance(x, torch.Tensor)])
    record_on(tape)
    try:
        # Tensors made in inference mode do not count what is written to them.
        if torch.is_inference_mode_enabled():
            with torch.inference_mode(False), torch.no_grad():
                result = function(*own)
        else:
            result = function(*own)
    finally:
        record_on(None)
    return result, _program(tape, result)


def _of_its_own(x: torch.Tensor) -> torch.Tensor:
    """The same memory under a storage of its own."""
    capsule = torch.utils.dlpack.to_dlpack(x.detach())
    other: torch.Tensor = torch.utils.dlpack.from_dlpack(capsule)
    return other.as_strided(x.size(), x.stride())


def _program(tape: Tape, result: Any) -> Program | None:
    returned = tensors_of(result)
    if not returned or not tape.complete or any(x.requires_grad for x in returned):
        return None
    if AVAILABLE and any(made.direct is None for made, _ in tape.launches):
        return None
    places = [tape.place(x) for x in returned]
    if any(place is None or place.memory < tape.inputs for place in places):
        return None
    return Program(tape, [x for x in places if x is not None], isinstance(result, tuple))


def packed(tape: Tape, numbers: set[int], apart: bool) -> tuple[dict[int, int], int]:
    """Where in one workspace each of these memories is, and how many bytes that has.

    Memories that no launch works on together, nor one between, may be in one place; ``apart``: they
    may not, since launches overlap.
    """
    used: dict[int, tuple[int, int]] = {}
    for step, (_, places) in enumerate(tape.launches):
        for place in places:
            if place.memory in numbers:
                used[place.memory] = (used.get(place.memory, (step, 0))[0], step)
    offsets: dict[int, int] = {}
    ends: dict[int, int] = {}
    for number in sorted(used, key=lambda number: (used[number][0], -tape.memories[number].bytes)):
        first, last = used[number]
        room = max(1, -(-tape.memories[number].bytes // ALIGNMENT)) * ALIGNMENT
        others = [
            other
            for other in offsets
            if apart or not (used[other][1] < first or last < used[other][0])
        ]
        at = 0
        for other in sorted(others, key=offsets.__getitem__):
            if at + room <= offsets[other]:
                break
            at = max(at, ends[other])
        offsets[number], ends[number] = at, at + room
    return offsets, max(ends.values(), default=0)


class Program:
    """The launches of a call, and where everything they work on is."""

    def __init__(self, tape: Tape, returned: list[Place], several: bool) -> None:
        self.several = several
        self.inputs = tape.inputs
        numbers: dict[int, int] = {number: number for number in range(tape.inputs)}
        results: list[Memory] = []
        for place in returned:
            if place.memory not in numbers:
                numbers[place.memory] = tape.inputs + len(results)
                results.append(tape.memories[place.memory])
        workspace = tape.inputs + len(results)
        between = {number for number in range(len(tape.memories)) if number not in numbers}
        overlap = any(made.constants.get("launch_pdl") for made, _ in tape.launches)
        offsets, self.bytes = packed(tape, between, apart=overlap)

        def moved(place: Place) -> Place:
            behind = offsets.get(place.memory)
            if behind is None:
                return place._replace(memory=numbers[place.memory])
            return place._replace(memory=workspace, offset=behind + place.offset)

        # As a result is laid out that is all of a memory, so that no view of it is made.
        moved_results = [moved(place) for place in returned]
        layouts = [(x.size, x.stride, x.dtype) for x in results]
        for place in reversed(moved_results):
            number = place.memory - tape.inputs
            if _is_all(place, results[number]):
                layouts[number] = (place.size, place.stride, place.dtype)
        device = results[0].device
        self.device = -1 if device.index is None else device.index
        self.rooms = [
            partial(torch.empty_strided, size, stride, dtype=dtype, device=device)
            for size, stride, dtype in layouts
        ]
        if self.bytes:
            self.rooms.append(
                partial(torch.empty_strided, (self.bytes,), (1,), dtype=torch.uint8, device=device)
            )
        self.launches = [(made, [moved(x) for x in places]) for made, places in tape.launches]
        # None: the memory as it was allocated, of which no view needs to be made.
        self.returned: list[tuple[int, Place | None]] = []
        for place in moved_results:
            number = place.memory - tape.inputs
            same = (place.offset, place.size, place.stride, place.dtype) == (0, *layouts[number])
            self.returned.append((number, None if same else place))
        self.plain = self.several and [x for x, _ in self.returned] == list(range(len(results)))
        self.plain = self.plain and all(part is None for _, part in self.returned)
        hooks = [getattr(made.kernel, "pre_run_hooks", ()) for made, _ in self.launches]
        self.hooks = list({id(x): x for x in hooks}.values())
        # An address that is not where a memory begins is added up once, and has a number behind
        # those of the memories.
        first = tape.inputs + len(self.rooms)
        inner = dict.fromkeys(
            (x.memory, x.offset) for _, places in self.launches for x in places if x.offset
        )
        number_of = {at: first + i for i, at in enumerate(inner)}
        self.inner = list(inner)
        self.calls = [
            (
                made.direct.call,
                made.grid,
                made.direct.before,
                _given(made, [number_of.get((x.memory, x.offset), x.memory) for x in places]),
                made.tail,
            )
            for made, places in self.launches
            if made.direct is not None
        ]

    def __call__(self, args: tuple[Any, ...], addresses: list[int]) -> Any:
        memories = self.allocate()
        if not AVAILABLE or any(self.hooks):
            self._as_triton_does(args, memories)
        else:
            for x in memories:
                addresses.append(x.data_ptr())
            self.launch(addresses)
        if self.plain:
            return tuple(memories[: len(self.returned)])
        found = [
            memories[number] if part is None else view(memories[number], part)
            for number, part in self.returned
        ]
        return tuple(found) if self.several else found[0]

    def allocate(self) -> list[torch.Tensor]:
        """The results, and the workspace if there is one."""
        return [make() for make in self.rooms]

    def launch(self, addresses: list[int]) -> None:
        """The launches, on memories that begin at ``addresses``: of the arguments, and of what
        ``allocate`` gives. More addresses are appended."""
        addresses += [addresses[memory] + offset for memory, offset in self.inner]
        stream = current_stream(self.device)
        if PACKS:
            for start, grid, before, taken, tail in self.calls:
                start(*grid, stream, *before, (*taken(addresses), *tail))
        else:
            for start, grid, before, taken, tail in self.calls:
                start(*grid, stream, *before, *taken(addresses), *tail)

    def _as_triton_does(self, args: tuple[Any, ...], made_here: list[torch.Tensor]) -> None:
        """The same launches by ``kernel[grid]``, on tensors."""
        memories = [x for x in args if isinstance(x, torch.Tensor)] + made_here
        for made, places in self.launches:
            pointers = [view(memories[place.memory], place) for place in places]
            given = as_triton_takes(pointers, made.boxes)
            made.kernel[made.grid](*given, *made.numbers, **made.constants)


def _is_all(place: Place, memory: Memory) -> bool:
    """Whether a place is a whole memory, its elements in a row."""
    return (
        place.offset == 0
        and place.dtype == memory.dtype
        and place.stride == contiguous(place.size)
        and math.prod(place.size) == math.prod(memory.size)
    )


def _given(made: Launch, numbers: list[int]) -> Callable[[list[int]], tuple[Any, ...]]:
    """What makes the arguments of a launch, up to its numbers, of all addresses."""
    taken = _taken(numbers)
    if not made.boxes or made.direct is None:
        return taken
    of_boxes = described(made.direct, made.boxes)
    return lambda addresses: of_boxes(taken(addresses))


def _taken(numbers: list[int]) -> Callable[[list[int]], tuple[int, ...]]:
    """What takes from a list those of ``numbers``, as a tuple."""
    if len(numbers) == 1:
        (only,) = numbers
        return lambda addresses: (addresses[only],)
    return itemgetter(*numbers)
