"""Repeat the launches of a call in later calls of the same signature.

    @replayed
    def _forward(q, k, v, sm_scale):
        ...check, choose tiles...
        out = torch.empty(...)
        kernel[grid](q, k, v, out, ...)
        return out

The decorator saves host time and changes nothing else. A decorated function may read the shapes,
strides, dtypes, devices and alignment of its tensors, but not their values. These properties and
the other arguments are the signature of a call. The first call of a signature runs as usual, the
second is recorded, and later ones are replayed: a replay allocates the results and one workspace,
and calls the compiled kernels.

A call is never replayed

- if a gradient is wanted, if a profiler or hook watches launches, or in a torch.func transform;
- if an argument is given by keyword, or is not a plain tensor, a number or None;
- if it does more than launch kernels on its arguments and on memory from ``torch.empty``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import triton
from torch.multiprocessing.reductions import StorageWeakRef
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction, KernelInterface

from ..jit.compat import CPU_ALLOWED, INTERPRETED, TRITON_VERSION
from .device import on_its_device

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "NSA_KERNELS_LAUNCH"
"""The environment variable which, set to ``triton``, turns replays off."""
ENABLED: bool = os.environ.get(VARIABLE) != "triton" and (
    INTERPRETED
    or (
        (3, 0, 0) <= TRITON_VERSION < (3, 10, 0)
        and not CPU_ALLOWED
        and torch.version.cuda is not None
        and hasattr(torch._C, "_cuda_getCurrentRawStream")
    )
)
TAKES_CONSTANTS: bool = TRITON_VERSION >= (3, 3, 0)
"""Whether compiled kernels also take their constants as arguments."""
MOST_PROGRAMS = 1024
"""How many recorded programs a function keeps. If there are more, the oldest is dropped."""
MOST_SEEN = 256
"""How many signatures of first calls a function keeps. If there are more, the oldest is dropped."""
MOST_DESCRIPTORS = 256
"""The most descriptors that are kept for each tensor of a launch."""
DESCRIPTION = frozenset(("swizzle", "elem_size", "elem_type", "block_size"))
"""Keys of Triton's metadata that are needed to make a descriptor without Triton's launcher."""
ALIGNMENT = 256
"""The parts of a workspace begin at multiples of this number of bytes."""

_ALLOCATIONS = ("empty", "empty_like", "empty_strided")
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_PLAIN = frozenset((int, float, bool, type(None)))
_run = JITFunction.run
_recording = threading.Lock()


def undisturbed() -> bool:
    """Return False if a profiler hook is set, if debugging or instrumentation is on, or if
    ``JITFunction.run`` was replaced."""
    if JITFunction.run is not _run:
        return False
    if TRITON_VERSION < (3, 4, 0):
        hooks = CompiledKernel.launch_enter_hook or CompiledKernel.launch_exit_hook
        return hooks is None and os.environ.get("TRITON_DEBUG", "0") != "1"
    runtime = triton.knobs.runtime
    return not (
        # From Triton 3.5, this is a chain of hooks, maybe empty. Before 3.5, it is a hook or None.
        getattr(runtime.launch_enter_hook, "calls", runtime.launch_enter_hook)
        or getattr(runtime.launch_exit_hook, "calls", runtime.launch_exit_hook)
        or runtime.debug
        or getattr(runtime, "add_stages_inspection_hook", None)
        or getattr(triton.knobs.compilation, "instrumentation_mode", None)
    )


def replayed(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of tensors and numbers that returns a tensor or a tuple of them.

    The function runs on the device of its first tensor.
    """
    plain = on_its_device(function)
    if not ENABLED:
        return plain
    programs: OrderedDict[tuple[Any, ...], Program | None] = OrderedDict()
    seen: OrderedDict[int, None] = OrderedDict()

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> T:
        if kwargs or torch._C._are_functorch_transforms_active() or _recording.locked():
            return plain(*args, **kwargs)
        grad = torch.is_grad_enabled()
        key: list[Any] = []
        addresses: list[int] = []
        low = 0
        device = -2
        x: Any
        for x in args:
            kind = x.__class__
            if kind in _TENSORS:
                index = x.get_device()
                if (grad and x.requires_grad) or x.is_neg() or (index < 0 and not x.is_cpu):
                    return plain(*args, **kwargs)
                key.append((x.shape, x.stride(), x.dtype, index))
                address = x.data_ptr()
                low |= address
                addresses.append(address)
                if device == -2:
                    device = index
            elif kind in _PLAIN:
                key.append(kind)  # since 1 == 1.0 == True
                key.append(x)
            else:
                return plain(*args, **kwargs)
        # Torch allocates at multiples of 512 bytes, so the tensors of most calls are aligned.
        key.append(None if low & 15 == 0 else tuple([x & 15 for x in addresses]))
        signature = tuple(key)
        program = programs.get(signature)
        if program is not None and undisturbed() and not program.is_hooked():
            if device < 0 or device == torch.cuda.current_device():
                return program(args, addresses)
            with torch.cuda.device(device):
                return program(args, addresses)
        if signature in programs or not undisturbed():
            return plain(*args, **kwargs)
        if hash(signature) not in seen:
            _keep(seen, hash(signature), None, MOST_SEEN)
            return plain(*args, **kwargs)
        if not _recording.acquire(blocking=False):
            return plain(*args, **kwargs)
        try:
            result, program = record(plain, args)
        finally:
            _recording.release()
        _keep(programs, signature, program, MOST_PROGRAMS)
        return result

    call.programs = programs  # type: ignore[attr-defined]
    call.seen = seen  # type: ignore[attr-defined]
    return call


def _keep(entries: OrderedDict[Any, Any], key: Any, value: Any, most: int) -> None:
    if len(entries) >= most:
        entries.popitem(last=False)
    entries[key] = value


class Place(NamedTuple):
    """Where a tensor is: the index of its memory (inputs first, then allocations), its offset in
    bytes, and its layout.

    ``described``: shape and strides of the descriptor (``launch.descriptors``) that a kernel takes
    instead of a pointer.
    """

    memory: int
    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    described: tuple[tuple[int, ...], tuple[int, ...]] | None = None

    def fills(self, room: int) -> bool:
        """Return whether the tensor fills a memory of ``room`` bytes."""
        steps = zip(self.size, self.stride, strict=True)
        extent = 0 if 0 in self.size else 1 + sum((n - 1) * step for n, step in steps)
        return self.offset == 0 and extent * self.dtype.itemsize == room

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor at this place, in the memory that begins where ``memory`` begins."""
        if memory.dtype != self.dtype:
            memory = memory.view(self.dtype)
        offset = memory.storage_offset() + self.offset // self.dtype.itemsize
        return memory.as_strided(self.size, self.stride, offset)


class Memory(NamedTuple):
    """An input or allocation: its address during the recording, its size in bytes, its device."""

    start: int
    bytes: int
    device: torch.device


class Launch(NamedTuple):
    """A launch. ``places`` are its tensor arguments, ``others`` its other arguments."""

    kernel: Any
    grid: tuple[int, ...]
    places: dict[str, Place]
    others: dict[str, Any]
    compiled: Any


class Recorder:
    """The allocations and launches of a call, noted inside ``with recorder.noting()``."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """``inputs`` must have different storages, and live until the call ends."""
        self.memories: list[Memory] = []
        self.launches: list[Launch] = []
        self.is_complete = True
        self._numbers: dict[int, int] = {}
        # As long as a weak reference exists, no new storage gets the address of a freed one.
        self._names: list[StorageWeakRef] = []
        self._thread = threading.get_ident()
        for x in inputs:
            self._add(x)
        self.inputs = len(self.memories)

    def _add(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        self._numbers[storage._cdata] = len(self.memories)
        self._names.append(StorageWeakRef(storage))
        self.memories.append(Memory(x.data_ptr(), x.numel() * x.element_size(), x.device))

    def place(self, x: torch.Tensor) -> Place:
        """Return where a tensor is.

        The recording becomes incomplete if the memory is neither an input nor a noted allocation
        (such as a copy that torch made), or if torch has written to the allocation.
        """
        memory = self._numbers.get(x.untyped_storage()._cdata)
        if memory is None or (memory >= self.inputs and x._version > 0):
            self.is_complete = False
            memory = 0
        offset = x.data_ptr() - self.memories[memory].start
        return Place(memory, offset, x.dtype, tuple(x.shape), x.stride())

    def _add_launch(
        self, kernel: Any, grid: tuple[int, ...], given: dict[str, Any], compiled: Any
    ) -> None:
        places: dict[str, Place] = {}
        others: dict[str, Any] = {}
        for name, x in given.items():
            if x.__class__ in _PLAIN:
                others[name] = x
            elif isinstance(x, torch.Tensor):
                places[name] = self.place(x)
            elif hasattr(x, "block_shape"):
                described = tuple(x.shape), tuple(x.strides)
                places[name] = self.place(x.base)._replace(described=described)
            else:
                others[name] = x
        self.launches.append(Launch(kernel, grid, places, others, compiled))

    @contextmanager
    def noting(self) -> Iterator[None]:
        """Note what this thread allocates and launches.

        Functions are replaced, since a TorchFunctionMode would also be called for each ``x.shape``,
        which takes longer than the launches.
        """
        own = [getattr(torch, name) for name in _ALLOCATIONS]
        getitem = KernelInterface.__getitem__
        try:
            for name, allocate in zip(_ALLOCATIONS, own, strict=True):
                setattr(torch, name, self._note_allocation(allocate))
            KernelInterface.__getitem__ = self._note_launch(getitem)
            yield
        finally:
            KernelInterface.__getitem__ = getitem
            for name, allocate in zip(_ALLOCATIONS, own, strict=True):
                setattr(torch, name, allocate)

    def _note_allocation(self, allocate: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any, **kwargs: Any) -> Any:
            result = allocate(*args, **kwargs)
            if threading.get_ident() == self._thread:
                self._add(result)
            return result

        return noted

    def _note_launch(self, getitem: Callable[..., Any]) -> Callable[..., Any]:
        def noted(kernel: Any, grid: Any) -> Any:
            launch = getitem(kernel, grid)
            if threading.get_ident() != self._thread:
                return launch

            def launch_noted(*args: Any, **kwargs: Any) -> Any:
                compiled = launch(*args, **kwargs)
                given = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
                self._add_launch(kernel, grid, given, compiled)
                return compiled

            return launch_noted

        return noted


def record(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Program | None]:
    """Return the results of a call, and a program that repeats it (None if that is impossible)."""
    storages: set[int] = set()
    own: list[Any] = []
    for x in args:
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()._cdata
            # Each pointer must belong to one input, even if q, k and v are parts of one tensor.
            own.append(_rewrap(x) if storage in storages else x)
            storages.add(storage)
        else:
            own.append(x)
    recorder = Recorder([x for x in own if isinstance(x, torch.Tensor)])
    # Tensors of inference mode have no version counter, which ``place`` reads.
    with torch.inference_mode(False), torch.no_grad(), recorder.noting():
        result = function(*own)
    several = isinstance(result, tuple)
    returned = list(result) if several else [result]
    if not returned or not all(isinstance(x, torch.Tensor) for x in returned):
        return result, None
    places = [recorder.place(x) for x in returned]
    if not (
        recorder.is_complete
        and recorder.launches
        and all(place.memory >= recorder.inputs for place in places)
        and not any(x.requires_grad for x in returned)
        and all(INTERPRETED or _is_callable(x) for x in recorder.launches)
    ):
        return result, None
    return result, Program(recorder, places, several)


def _rewrap(x: torch.Tensor) -> torch.Tensor:
    other: torch.Tensor = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach()))
    return other.as_strided(x.size(), x.stride())


def _is_callable(launch: Launch) -> bool:
    """Return whether ``Program`` can call the compiled kernel, and make its descriptors."""
    from triton.backends.nvidia.driver import CudaLauncher

    compiled = launch.compiled
    if type(compiled) is not CompiledKernel or type(compiled.run) is not CudaLauncher:
        return False
    described = [x for x in launch.places.values() if x.described]
    return not described or _can_describe(compiled, len(described))


def _can_describe(compiled: Any, count: int) -> bool:
    """Return whether this version of Triton has all that ``_descriptor_maker`` uses."""
    from triton.backends.nvidia import driver

    kinds = getattr(compiled.metadata, "tensordesc_meta", None) or []
    return (
        len(kinds) == count
        and all(kind and kind.keys() >= DESCRIPTION for kind in kinds)
        and inspect.isfunction(compiled.run.launch)
        and "launcher" in inspect.getclosurevars(compiled.run.launch).nonlocals
        and hasattr(driver, "TMA_DTYPE_DEVICE_TO_HOST")
        and hasattr(triton.runtime.driver.active.utils, "fill_tma_descriptor")
    )


class Program:
    """A recorded call, which can be repeated on any inputs of its signature."""

    def __init__(self, recorder: Recorder, returned: list[Place], several: bool) -> None:
        self._several = several
        self._inputs = inputs = recorder.inputs
        numbers = {x: inputs + i for i, x in enumerate(dict.fromkeys(x.memory for x in returned))}
        offsets, self.bytes = _share_workspace(recorder, set(numbers))

        def move(x: Place) -> Place:
            if x.memory < inputs:
                return x
            if x.memory in numbers:
                return x._replace(memory=numbers[x.memory])
            offset = offsets[x.memory] + x.offset
            return x._replace(memory=inputs + len(numbers), offset=offset)

        self.launches = [
            x._replace(places={name: move(place) for name, place in x.places.items()})
            for x in recorder.launches
        ]
        self._returned: list[tuple[int, Place | None]] = [
            (numbers[x.memory] - inputs, move(x)) for x in returned
        ]
        device = recorder.memories[returned[0].memory].device
        self._device = -1 if device.index is None else device.index
        layouts: list[tuple[Any, Any, torch.dtype]] = []
        for memory in numbers:
            room = recorder.memories[memory].bytes
            uses = [i for i, x in enumerate(returned) if x.memory == memory]
            place = returned[uses[0]]
            if len(uses) == 1 and place.fills(room):
                layouts.append((place.size, place.stride, place.dtype))
                self._returned[uses[0]] = (numbers[memory] - inputs, None)
            else:
                layouts.append(((room,), (1,), torch.uint8))
        if self.bytes:
            layouts.append(((self.bytes,), (1,), torch.uint8))
        self._rooms = [
            partial(torch.empty_strided, size, stride, dtype=dtype, device=device)
            for size, stride, dtype in layouts
        ]
        # Launches take their arguments from a list: first the starts of memories, then
        # addresses within memories, then other values.
        self._inner: dict[tuple[int, int], int] = {}
        first = inputs + len(self._rooms)
        for launch in self.launches:
            for x in launch.places.values():
                if x.offset:
                    self._inner.setdefault((x.memory, x.offset), first + len(self._inner))
        # These lists are Triton's own, so hooks that are added later appear in them.
        self._hooks = [getattr(x.kernel, "pre_run_hooks", ()) for x in self.launches]
        self._constants: list[Any] = []
        self._calls = [] if INTERPRETED else [self._prepare(x) for x in self.launches]

    def __call__(self, args: tuple[Any, ...], addresses: list[int]) -> Any:
        """Repeat the call on other arguments, whose tensors begin at ``addresses``."""
        rooms = self.allocate()
        if INTERPRETED:
            self._interpret([x for x in args if isinstance(x, torch.Tensor)] + rooms)
        else:
            self.launch(addresses + [x.data_ptr() for x in rooms])
        results = tuple([rooms[i] if x is None else x.view(rooms[i]) for i, x in self._returned])
        return results if self._several else results[0]

    def is_hooked(self) -> bool:
        return any(self._hooks)

    def allocate(self) -> list[torch.Tensor]:
        """Return memory for the results, and a workspace if there is one."""
        return [allocate() for allocate in self._rooms]

    def launch(self, values: list[Any]) -> None:
        """Launch on inputs, results and a workspace that begin at the addresses ``values``."""
        values += [values[memory] + offset for memory, offset in self._inner]
        values += self._constants
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        for run, grid, fixed, pick in self._calls:
            run(*grid, stream, *fixed, *pick(values))

    def _interpret(self, memories: list[torch.Tensor]) -> None:
        for x in self.launches:
            tensors = {name: place.view(memories[place.memory]) for name, place in x.places.items()}
            x.kernel[x.grid](**tensors, **x.others)

    def _prepare(self, launch: Launch) -> tuple[Any, ...]:
        """Return what ``JITFunction.run`` calls in the end: the launcher, its grid, the arguments
        after the stream, and a function that picks the kernel's arguments from all values."""
        kernel, grid, places, others, compiled = launch
        arguments: dict[str, Any] = places | others
        given = [
            arguments.get(x.name, x.default)
            for x in kernel.params
            if TAKES_CONSTANTS or not x.is_constexpr
        ]
        first = self._inputs + len(self._rooms) + len(self._inner)
        slots = []
        for x in given:
            if not isinstance(x, Place):
                slots.append(first + len(self._constants))
                self._constants.append(x)
            else:
                slots.append(self._inner.get((x.memory, x.offset), x.memory))
        run = compiled.run
        pick: Callable[[list[Any]], Sequence[Any]] = _pick(slots)
        if any(x.described for x in places.values()):
            kinds = iter(compiled.metadata.tensordesc_meta)
            makers = [
                _descriptor_maker(next(kinds), *x.described)
                if isinstance(x, Place) and x.described
                else None
                for x in given
            ]
            # Unwrap Triton's launcher: the wrapper makes all descriptors again in each call.
            inner = inspect.getclosurevars(run.launch).nonlocals["launcher"]
            run = copy.copy(run)
            run.launch = inner
            pick = partial(_pick_described, pick, makers)
        # The three Nones stand for the metadata of hooks, and for two hooks.
        fixed = (compiled.function, compiled.packed_metadata, None, None, None)
        return run, (*grid, 1, 1)[:3], fixed, pick


def _pick(slots: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    if len(slots) == 1:
        return lambda values: (values[slots[0]],)
    return itemgetter(*slots)


def _pick_described(
    pick: Callable[[list[Any]], Sequence[Any]], makers: list[Any], values: list[Any]
) -> Sequence[Any]:
    given: list[Any] = []
    for x, make in zip(pick(values), makers, strict=True):
        if make is None:
            given.append(x)
        else:
            given += make(x)
    return given


def _descriptor_maker(
    kind: dict[str, Any], shape: tuple[int, ...], strides: tuple[int, ...]
) -> Callable[[int], tuple[Any, ...]]:
    """Return a function that takes an address and returns the arguments that form a descriptor.

    The results are cached, since tensors are often allocated at the same address again.
    """
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    utils: Any = triton.runtime.driver.active.utils
    dtype = TMA_DTYPE_DEVICE_TO_HOST[kind["elem_type"]]

    def make(address: int) -> tuple[Any, ...]:
        made = utils.fill_tma_descriptor(
            *(address, kind["swizzle"], kind["elem_size"], dtype, kind["block_size"]),
            *(shape, strides, 0),
        )
        return (made, *shape, *strides)

    return functools.lru_cache(MOST_DESCRIPTORS)(make)


def _share_workspace(recorder: Recorder, results: set[int]) -> tuple[dict[int, int], int]:
    """Return the offset of each temporary in one workspace, and the bytes of the workspace.

    Two temporaries share memory if the last launch that uses one comes before the first launch that
    uses the other. If launches may run at the same time, none share memory.
    """
    uses: dict[int, tuple[int, int]] = {}
    for step, launch in enumerate(recorder.launches):
        for x in launch.places.values():
            if x.memory >= recorder.inputs and x.memory not in results:
                uses[x.memory] = (uses.get(x.memory, (step, 0))[0], step)
    overlap = any(launch.others.get("launch_pdl") for launch in recorder.launches)
    rooms = {x: -(-max(1, recorder.memories[x].bytes) // ALIGNMENT) * ALIGNMENT for x in uses}
    offsets: dict[int, int] = {}
    for memory in sorted(uses, key=lambda x: (uses[x][0], -rooms[x])):
        first, last = uses[memory]
        offset = 0
        for other in sorted(offsets, key=offsets.__getitem__):
            apart = uses[other][1] < first or last < uses[other][0]
            if apart and not overlap:
                continue
            if offset + rooms[memory] <= offsets[other]:
                break
            offset = max(offset, offsets[other] + rooms[other])
        offsets[memory] = offset
    return offsets, max((offsets[x] + rooms[x] for x in offsets), default=0)
