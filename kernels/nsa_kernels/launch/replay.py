"""Calls that are made again with the same signature: only their launches are repeated.

    @replayed
    def _forward(q, k, v, sm_scale):
        ...check, choose tiles...
        out = torch.empty(...)
        kernel[grid](q, k, v, out, ...)
        return out

The decorator saves time on the host and changes nothing else. A function under it may read of its
tensors shapes, strides, dtypes, devices and alignment, not values: these and its other arguments
are the signature. The first call of a signature runs as it is; so does the second, which is
recorded. Later ones allocate the results and one workspace, and call what Triton compiled.

Calls run as they are where a gradient is wanted, while somebody watches launches, under transforms
of torch.func, with arguments that are no plain tensors, numbers or None, and where more was done
than to launch kernels on the arguments and on memory from ``torch.empty``.
"""

from __future__ import annotations

import copy
import functools
import inspect
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from operator import itemgetter
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
import triton
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction, KernelInterface

from ..jit.compat import CPU_ALLOWED, INTERPRETED, TRITON_VERSION
from .device import on_its_device, resolved

P = ParamSpec("P")
T = TypeVar("T")

VARIABLE = "NSA_KERNELS_LAUNCH"
"""With the value ``triton`` nothing is replayed."""
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
"""Whether compiled kernels are called on their constants, too."""
MOST = 1024
"""Signatures a function remembers; with one more it forgets all."""
MOST_DESCRIPTORS = 256
"""Remembered for each described tensor of a launch."""
ALIGNMENT = 256
"""Bytes, of the parts of a workspace."""

_ALLOCATIONS = frozenset((torch.empty, torch.empty_like, torch.empty_strided))
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
_PLAIN = frozenset((int, float, bool, type(None)))
_ONCE, _NEVER = object(), object()
"""Signatures that were seen once, and that cannot be replayed."""
_run = JITFunction.run
_recording = threading.Lock()


def undisturbed() -> bool:
    """Whether nobody watches launches or asked for other kernels: no hook of a profiler, no debug
    build, no instrumentation, ``JITFunction.run`` as Triton has it."""
    if JITFunction.run is not _run:
        return False
    if TRITON_VERSION < (3, 4, 0):
        hooks = CompiledKernel.launch_enter_hook or CompiledKernel.launch_exit_hook
        return hooks is None and os.environ.get("TRITON_DEBUG", "0") != "1"
    runtime = triton.knobs.runtime
    return not (
        # A chain of hooks, empty or not; before 3.5 one hook or None.
        getattr(runtime.launch_enter_hook, "calls", runtime.launch_enter_hook)
        or getattr(runtime.launch_exit_hook, "calls", runtime.launch_exit_hook)
        or runtime.debug
        or getattr(runtime, "add_stages_inspection_hook", None)
        or getattr(triton.knobs.compilation, "instrumentation_mode", None)
    )


def replayed(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function of tensors and numbers that returns a tensor or a tuple of them.

    It runs on the device of its first tensor.
    """
    plain = on_its_device(function)
    if not ENABLED:
        return plain
    programs: dict[tuple[Any, ...], Any] = {}

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
                if (grad and x.requires_grad) or (index < 0 and not x.is_cpu):
                    return plain(*args, **kwargs)
                if x.is_neg():
                    again: Any = call
                    found: T = again(*[resolved(y) for y in args])
                    return found
                key.append((x.shape, x.stride(), x.dtype, index))
                address = x.data_ptr()
                low |= address
                addresses.append(address)
                if device == -2:
                    device = index
            elif kind in _PLAIN:
                key.append(kind)  # 1, 1.0 and True are equal
                key.append(x)
            else:
                return plain(*args, **kwargs)
        # Tensors of torch begin at multiples of 512 bytes: most calls are aligned.
        key.append(None if low & 15 == 0 else tuple([x & 15 for x in addresses]))
        signature = tuple(key)
        program = programs.get(signature)
        if program is None or program is _NEVER or not undisturbed():
            if program is None:
                if len(programs) >= MOST:
                    programs.clear()
                programs[signature] = _ONCE
            return plain(*args, **kwargs)
        if program is _ONCE:
            if not _recording.acquire(blocking=False):
                return plain(*args, **kwargs)
            try:
                programs[signature] = _NEVER  # should the call raise
                result, program = record(plain, args)
            finally:
                _recording.release()
            programs[signature] = program or _NEVER
            return result
        if device < 0 or device == torch.cuda.current_device():
            return program(args, addresses)
        with torch.cuda.device(device):
            return program(args, addresses)

    call.programs = programs  # type: ignore[attr-defined]
    return call


class Place(NamedTuple):
    """Where a tensor is: in which memory (the inputs, then what was allocated), how many bytes
    behind its start, and how it is laid out."""

    memory: int
    offset: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]

    def fills(self, room: int) -> bool:
        """Whether it is all of a memory of so many bytes."""
        steps = zip(self.size, self.stride, strict=True)
        extent = 0 if 0 in self.size else 1 + sum((n - 1) * step for n, step in steps)
        return self.offset == 0 and extent * self.dtype.itemsize == room

    def view(self, memory: torch.Tensor) -> torch.Tensor:
        """Return the tensor at this place in the memory that begins where ``memory`` does."""
        if memory.dtype != self.dtype:
            memory = memory.view(self.dtype)
        offset = memory.storage_offset() + self.offset // self.dtype.itemsize
        return memory.as_strided(self.size, self.stride, offset)


class Described(NamedTuple):
    """A tensor that a kernel takes as a descriptor (``launch.descriptors``)."""

    place: Place
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class Memory(NamedTuple):
    """Where a memory began when the call was recorded, its bytes and its device."""

    start: int
    bytes: int
    device: torch.device


class Launch(NamedTuple):
    """A launch; ``arguments``, with a Place or Described instead of each tensor, and options."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    compiled: Any

    @property
    def tensors(self) -> list[Place]:
        found = [x.place if isinstance(x, Described) else x for x in self.arguments.values()]
        return [x for x in found if isinstance(x, Place)]


class Recorder(TorchFunctionMode):
    """Notes the launches and the allocations of a call, while it runs under this."""

    def __init__(self, inputs: Sequence[torch.Tensor]) -> None:
        """``inputs``: no two of one storage, alive until the call ends."""
        super().__init__()
        self.memories: list[Memory] = []
        self.launches: list[Launch] = []
        self.is_complete = True
        self._numbers: dict[int, int] = {}
        # While one of these is there, no other storage gets the number of one that is gone.
        self._names: list[StorageWeakRef] = []
        for x in inputs:
            self._add(x)
        self.inputs = len(self.memories)

    def __torch_function__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        if func in _ALLOCATIONS:
            self._add(result)
        return result

    def _add(self, x: torch.Tensor) -> None:
        storage = x.untyped_storage()
        self._numbers[storage._cdata] = len(self.memories)
        self._names.append(StorageWeakRef(storage))
        self.memories.append(Memory(x.data_ptr(), x.numel() * x.element_size(), x.device))

    def place(self, x: torch.Tensor) -> Place | None:
        """Return where a tensor is; None: in memory that the call did not allocate, such as a copy
        by torch, or that torch has written to, which it counts."""
        memory = self._numbers.get(x.untyped_storage()._cdata)
        if memory is None or (memory >= self.inputs and x._version > 0):
            self.is_complete = False
            return None
        offset = x.data_ptr() - self.memories[memory].start
        return Place(memory, offset, x.dtype, tuple(x.shape), x.stride())

    def _locate(self, x: Any) -> Any:
        if isinstance(x, torch.Tensor):
            return self.place(x)
        if hasattr(x, "block_shape"):
            place = self.place(x.base)
            return place and Described(place, tuple(x.shape), tuple(x.strides))
        return x

    @contextmanager
    def launches_noted(self) -> Iterator[None]:
        """Note the launches of this thread."""
        thread = threading.get_ident()

        own = KernelInterface.__getitem__

        def noted(kernel: Any, grid: Any) -> Any:
            def launch(*args: Any, **kwargs: Any) -> Any:
                compiled = own(kernel, grid)(*args, **kwargs)
                if threading.get_ident() == thread:
                    named = dict(zip(kernel.arg_names, args, strict=False)) | kwargs
                    located = {name: self._locate(x) for name, x in named.items()}
                    self.launches.append(Launch(kernel, grid, located, compiled))
                return compiled

            return launch

        KernelInterface.__getitem__ = noted
        try:
            yield
        finally:
            KernelInterface.__getitem__ = own


def record(function: Callable[..., Any], args: tuple[Any, ...]) -> tuple[Any, Program | None]:
    """Return what a call gives, and what repeats it; None if nothing can."""
    storages: set[int] = set()
    own: list[Any] = []
    for x in args:
        if isinstance(x, torch.Tensor):
            storage = x.untyped_storage()._cdata
            # Whose a pointer is must be plain, also where q, k and v are parts of one tensor.
            own.append(_rewrap(x) if storage in storages else x)
            storages.add(storage)
        else:
            own.append(x)
    recorder = Recorder([x for x in own if isinstance(x, torch.Tensor)])
    # Tensors made in inference mode do not count what is written to them.
    with torch.inference_mode(False), torch.no_grad(), recorder.launches_noted(), recorder:
        result = function(*own)
    several = isinstance(result, tuple)
    returned = list(result) if several else [result]
    if not returned or not all(isinstance(x, torch.Tensor) for x in returned):
        return result, None
    places = [recorder.place(x) for x in returned]
    if not (
        recorder.is_complete
        and recorder.launches
        and all(place is not None and place.memory >= recorder.inputs for place in places)
        and not any(x.requires_grad for x in returned)
        and all(INTERPRETED or _is_callable(x.compiled) for x in recorder.launches)
    ):
        return result, None
    return result, Program(recorder, [x for x in places if x is not None], several)


def _rewrap(x: torch.Tensor) -> torch.Tensor:
    """Return the same memory under a storage of its own."""
    other: torch.Tensor = torch.utils.dlpack.from_dlpack(torch.utils.dlpack.to_dlpack(x.detach()))
    return other.as_strided(x.size(), x.stride())


def _is_callable(compiled: Any) -> bool:
    from triton.backends.nvidia.driver import CudaLauncher

    return type(compiled) is CompiledKernel and type(compiled.run) is CudaLauncher


class Program:
    """The launches of a call, and where everything they work on is."""

    def __init__(self, recorder: Recorder, returned: list[Place], several: bool) -> None:
        self._several = several
        self._inputs = inputs = recorder.inputs
        numbers = {x: inputs + i for i, x in enumerate(dict.fromkeys(x.memory for x in returned))}
        offsets, self.bytes = _share_workspace(recorder, set(numbers))

        def move(x: Any) -> Any:
            if isinstance(x, Described):
                return x._replace(place=move(x.place))
            if not isinstance(x, Place) or x.memory < inputs:
                return x
            if x.memory in numbers:
                return x._replace(memory=numbers[x.memory])
            offset = offsets[x.memory] + x.offset
            return x._replace(memory=inputs + len(numbers), offset=offset)

        self.launches = [
            x._replace(arguments={name: move(y) for name, y in x.arguments.items()})
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
        # Addresses within a memory, and all constants, are numbered behind the memories.
        places = [place for x in self.launches for place in x.tensors]
        self._inner = list(dict.fromkeys((x.memory, x.offset) for x in places if x.offset))
        self._constants: list[Any] = []
        self._calls = [] if INTERPRETED else [self._prepare(x) for x in self.launches]

    def __call__(self, args: tuple[Any, ...], addresses: list[int]) -> Any:
        """Repeat the call on other arguments; ``addresses``, of its tensors, is extended."""
        rooms = self.allocate()
        if INTERPRETED:
            self._interpret([x for x in args if isinstance(x, torch.Tensor)] + rooms)
        else:
            self.launch(addresses + [x.data_ptr() for x in rooms])
        found = tuple([rooms[i] if x is None else x.view(rooms[i]) for i, x in self._returned])
        return found if self._several else found[0]

    def allocate(self) -> list[torch.Tensor]:
        """Return memory for the results, and the workspace if there is one."""
        return [make() for make in self._rooms]

    def launch(self, values: list[Any]) -> None:
        """Make the launches, on inputs and rooms at these addresses."""
        values += [values[memory] + offset for memory, offset in self._inner]
        values += self._constants
        stream = torch._C._cuda_getCurrentRawStream(self._device)
        for run, grid, fixed, pick in self._calls:
            run(*grid, stream, *fixed, *pick(values))

    def _interpret(self, memories: list[torch.Tensor]) -> None:
        for kernel, grid, arguments, _ in self.launches:
            kernel[grid](
                **{
                    name: x.view(memories[x.memory]) if isinstance(x, Place) else x
                    for name, x in arguments.items()
                }
            )

    def _prepare(self, launch: Launch) -> tuple[Any, ...]:
        """Return what calls a compiled kernel as ``JITFunction.run`` does in the end: the launcher,
        the grid, what stands behind the stream, and what picks the arguments."""
        kernel, grid, arguments, compiled = launch
        given = [
            arguments.get(x.name, x.default)
            for x in kernel.params
            if TAKES_CONSTANTS or not x.is_constexpr
        ]
        first = self._inputs + len(self._rooms)
        slots = []
        for x in given:
            place = x.place if isinstance(x, Described) else x
            if not isinstance(place, Place):
                slots.append(first + len(self._inner) + len(self._constants))
                self._constants.append(x)
            elif place.offset:
                slots.append(first + self._inner.index((place.memory, place.offset)))
            else:
                slots.append(place.memory)
        run = compiled.run
        pick: Callable[[list[Any]], Sequence[Any]] = _pick(slots)
        kinds = iter(getattr(compiled.metadata, "tensordesc_meta", None) or ())
        makers = [
            _descriptor_maker(next(kinds), x) if isinstance(x, Described) else None for x in given
        ]
        if any(makers):
            # Triton makes all descriptors anew in each launch, in a function around its launcher.
            inner = inspect.getclosurevars(run.launch).nonlocals["launcher"]
            run = copy.copy(run)
            run.launch = inner
            pick = partial(_pick_described, pick, makers)
        # Metadata for hooks, and the hooks: none.
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


def _descriptor_maker(kind: dict[str, Any], x: Described) -> Callable[[int], tuple[Any, ...]]:
    """Return what makes of an address that which a compiled kernel takes for a descriptor.

    Descriptors are of the memory, and tensors come back to where others were.
    """
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    utils: Any = triton.runtime.driver.active.utils
    dtype = TMA_DTYPE_DEVICE_TO_HOST[kind["elem_type"]]

    def make(address: int) -> tuple[Any, ...]:
        made = utils.fill_tma_descriptor(
            *(address, kind["swizzle"], kind["elem_size"], dtype, kind["block_size"]),
            *(x.shape, x.strides, 0),
        )
        return (made, *x.shape, *x.strides)

    return functools.lru_cache(MOST_DESCRIPTORS)(make)


def _share_workspace(recorder: Recorder, results: set[int]) -> tuple[dict[int, int], int]:
    """Return where in one workspace each memory is that is no result, and the bytes of it.

    Memories that no launch needs both of, nor one between, may be in one place, unless launches
    overlap.
    """
    uses: dict[int, tuple[int, int]] = {}
    for step, launch in enumerate(recorder.launches):
        for x in launch.tensors:
            if x.memory >= recorder.inputs and x.memory not in results:
                uses[x.memory] = (uses.get(x.memory, (step, 0))[0], step)
    overlap = any(launch.arguments.get("launch_pdl") for launch in recorder.launches)
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
