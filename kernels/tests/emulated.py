"""Gluon kernels, emulated on the CPU. The emulation checks which elements are read and written,
where data is in shared memory, and how often a barrier is signalled. A group of warps is a thread.
Copies complete at once, products are in fp32, and layouts have no effect."""

from __future__ import annotations

import contextlib
import importlib
import itertools
import math
import sys
import threading
import traceback
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest import mock

import torch
from triton.runtime.jit import KernelInterface

_GLUON = "triton.experimental.gluon"
_SECONDS = 20  # a wait for a barrier that takes longer is a deadlock
_here = threading.local()  # the program, the programs, and the warps of this thread's group


class Pointer:
    """Elements ``at`` of the memory that a tensor spans."""

    def __init__(self, memory: torch.Tensor, at: Any = 0) -> None:
        self.memory, self.at = memory, at
        self.dtype = SimpleNamespace(element_ty=memory.dtype)

    def __add__(self, other: Any) -> Pointer:
        return Pointer(self.memory, self.at + other)

    def elements(self, mask: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Where they are, 0 for those that are masked out, and the mask."""
        at = torch.as_tensor(self.at)
        mask = torch.as_tensor(mask).broadcast_to(at.shape)
        at = torch.where(mask, at, 0)
        assert at.min() >= 0 and at.max() < len(self.memory), "outside of its tensor"
        return at, mask


def load(of: Pointer, mask: Any = True, other: Any = 0) -> torch.Tensor:
    at, mask = of.elements(mask)
    return torch.where(mask, of.memory[at], torch.tensor(other, dtype=of.memory.dtype))


def store(of: Pointer, x: torch.Tensor, mask: Any = True, eviction_policy: str = "") -> None:
    at, mask = of.elements(mask)
    of.memory[at[mask]] = x.broadcast_to(at.shape)[mask].to(of.memory.dtype)


class Shared:
    """Buffers [..., rows, columns] of shared memory. A row of 128 numbers of 16 bits is wider than
    a swizzle, so it is split into two halves."""

    def __init__(self, memory: torch.Tensor, shape: list[int], turned: bool = False) -> None:
        self.memory, self.shape, self.turned = memory, shape, turned
        self.dtype = memory.dtype

    def index(self, i: Any) -> Shared:
        assert 0 <= i < self.shape[0], "no such room"
        size = math.prod(self.shape[1:])
        return Shared(self.memory[int(i) * size :][:size], self.shape[1:])

    def permute(self, order: tuple[int, ...]) -> Shared:
        assert order == (1, 0)
        return Shared(self.memory, self.shape, not self.turned)

    def _reinterpret(self, dtype: torch.dtype, shape: list[int], layout: Any) -> Shared:
        memory = self.memory.view(dtype)
        assert math.prod(shape) <= len(memory)
        return Shared(memory, shape)

    def _halves(self) -> list[torch.Tensor]:
        rows, columns = self.shape if len(self.shape) == 2 else (1, self.shape[0])
        size = 64 if columns == 128 and self.dtype.itemsize == 2 else columns
        memory = self.memory[: rows * columns]
        return [x.view(rows, size) for x in memory.split(rows * size)]

    def load(self, layout: Any = None) -> torch.Tensor:
        x = torch.cat(self._halves(), 1).view(self.shape)
        return x.t() if self.turned else x

    def store(self, x: torch.Tensor) -> None:
        halves = self._halves()
        assert list(x.shape) == self.shape and not self.turned
        parts = x.view(len(halves[0]), -1).split(halves[0].shape[1], 1)
        for half, part in zip(halves, parts, strict=True):
            half.copy_(part)


class Barrier:
    """A phase ends after the expected number of signals and the expected number of bytes."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.count = self.left = self.bytes = self.phase = 0

    def told(self, count: int = 0, bytes: int = 0) -> None:
        with self.changed:
            self.left -= count
            self.bytes += bytes
            assert self.left >= 0, "told too often"
            if self.left == 0 and self.bytes == 0:
                self.left = self.count
                self.phase ^= 1
                self.changed.notify_all()


class Barriers:
    def __init__(self, count: int) -> None:
        self.of = [Barrier() for _ in range(count)]

    def index(self, i: Any) -> Barrier:
        return self.of[int(i)]


class MBarrierLayout:
    pass


def init(barrier: Barrier, count: int) -> None:
    barrier.count = barrier.left = count


def wait(barrier: Barrier, parity: Any) -> None:
    with barrier.changed:
        over = barrier.changed.wait_for(lambda: barrier.phase != int(parity), _SECONDS)
        assert over, "a deadlock"


def allocate(dtype: torch.dtype, shape: list[int], layout: Any) -> Shared | Barriers:
    if isinstance(layout, MBarrierLayout):
        return Barriers(shape[0])
    return Shared(torch.full((math.prod(shape),), math.nan, dtype=dtype), shape)


def copy_box(rows: Any, at: list[Any], barrier: Barrier, to: Shared) -> None:
    memory, (row, column) = spanned(rows.base), map(int, at)
    size, stride = rows.block_shape, rows.strides[0]
    assert row + size[0] <= rows.shape[0] and column + size[1] <= rows.shape[1]
    begin = memory[row * stride + column :]
    to.store(begin.as_strided(size, (stride, 1), begin.storage_offset()))
    barrier.told(bytes=-math.prod(size) * memory.itemsize)


def product(
    a: Any, b: Shared, acc: torch.Tensor, use_acc: bool = True, is_async: bool = False
) -> torch.Tensor:
    a = a.load() if isinstance(a, Shared) else a
    x = a.float() @ b.load().float()
    return acc + x if use_acc else x


def specialise(parts: list[tuple[Any, tuple[Any, ...]]], warps: list[int], _: list[int]) -> None:
    errors: list[str] = []
    program = _here.program

    def work(function: Any, arguments: tuple[Any, ...], warps: int) -> None:
        _here.program, _here.warps = program, warps
        try:
            with torch.no_grad():  # which a thread does not have from the one that starts it
                function(*arguments)
        except Exception:
            errors.append(traceback.format_exc())

    threads = [
        threading.Thread(target=work, args=(*part, count))
        for part, count in zip(parts, [4, *warps], strict=True)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, "\n".join(errors)


def nothing(*_: Any, **__: Any) -> None:
    pass


def decorator(function: Any = None, **_: Any) -> Any:
    return function or decorator


class Emulated(KernelInterface[Any]):
    """A function of device code. Programs of a launch run one after the other, the last one first:
    what one writes behind its own lies over what is right."""

    def __init__(self, fn: Callable[..., Any]) -> None:
        self.fn, self.launches = fn, 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.fn(*args, **kwargs)

    def run(self, *args: Any, grid: tuple[int, ...], warmup: bool, **constants: Any) -> None:
        self.launches += 1
        options = {"num_warps", "num_stages", "maxnreg"}
        constants = {name: x for name, x in constants.items() if name not in options}

        def argument(x: Any) -> Any:
            if isinstance(x, torch.Tensor):
                return Pointer(spanned(x))
            return torch.tensor(x) if isinstance(x, int) else x

        arguments = [argument(x) for x in args]
        for at in reversed(list(itertools.product(*map(range, grid)))):
            _here.program, _here.warps = (at, grid), 4
            self.fn(*arguments, **constants)


def jit(function: Any = None, **_: Any) -> Any:
    return Emulated(function) if function else jit


def first_or_all(_: int, deps: list[Any]) -> Any:
    return deps[0] if len(deps) == 1 else tuple(deps)


_LAYOUTS = (
    "BlockedLayout",
    "DistributedLinearLayout",
    "DotOperandLayout",
    "NVMMADistributedLayout",
    "NVMMASharedLayout",
    "SliceLayout",
    "SwizzledSharedLayout",
)
_LANGUAGE: dict[str, Any] = {
    **dict.fromkeys(_LAYOUTS, nothing),
    **{x: getattr(torch, x) for x in ("bfloat16", "float16", "float32", "int32", "int64")},
    "allocate_shared_memory": allocate,
    "arange": lambda begin, end, _: torch.arange(begin, end),
    "constexpr": lambda x: x,
    "convert_layout": lambda x, _: x,
    "exp2": torch.exp2,
    "inline_asm_elementwise": lambda code, constraints, of, dtype, *_: of[0].to(dtype),
    "load": load,
    "minimum": lambda a, b: torch.minimum(torch.as_tensor(a), torch.as_tensor(b)),
    "num_programs": lambda axis: torch.tensor(_here.program[1][axis]),
    "num_warps": lambda: _here.warps,
    "program_id": lambda axis: torch.tensor(_here.program[0][axis]),
    "static_range": range,
    "store": store,
    "sum": torch.sum,
    "thread_barrier": nothing,
    "warp_specialize": specialise,
    "where": torch.where,
    "zeros": lambda shape, dtype, _: torch.zeros(shape, dtype=dtype),
}
_HOPPER: dict[str, Any] = {
    "async_copy": SimpleNamespace(
        async_copy_global_to_shared=lambda to, of: to.store(load(of)),
        commit_group=nothing,
        wait_group=nothing,
        mbarrier_arrive=lambda barrier, increment_count: barrier.told(32 * _here.warps),
    ),
    "fence_async_shared": nothing,
    "mbarrier": SimpleNamespace(
        MBarrierLayout=MBarrierLayout,
        init=init,
        wait=wait,
        arrive=lambda barrier, count: barrier.told(count),
        expect=lambda barrier, bytes: barrier.told(1, bytes),
    ),
    "tma": SimpleNamespace(async_copy_global_to_shared=copy_box),
    "warpgroup_mma": product,
    "warpgroup_mma_wait": first_or_all,
}


def emulated(*names: str) -> ModuleType:
    """Import these modules of device code in order and return the last, which may import the
    earlier ones."""
    stand_ins: dict[str, dict[str, Any]] = {
        "triton.experimental": {},
        _GLUON: {"jit": jit, "constexpr_function": decorator},
        f"{_GLUON}.language": _LANGUAGE,
        f"{_GLUON}.language.nvidia.hopper": _HOPPER,
    }
    modules = {}
    for name, of in stand_ins.items():
        modules[name] = ModuleType(name)
        vars(modules[name]).update(of)
    vars(modules["triton.experimental"])["gluon"] = modules[_GLUON]
    vars(modules[_GLUON])["language"] = modules[f"{_GLUON}.language"]
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(sys.modules, modules))
        for name in names:
            sys.modules.pop(name, None)
            package, _, last = name.rpartition(".")
            # An import leaves it there.
            of_package = vars(importlib.import_module(package))
            stack.enter_context(mock.patch.dict(of_package))
            of_package.pop(last, None)
        return [importlib.import_module(name) for name in names][-1]


def spanned(x: torch.Tensor) -> torch.Tensor:
    """The memory from the first element of a tensor to its last."""
    steps = zip(x.shape, x.stride(), strict=True)
    return x.as_strided((1 + sum((n - 1) * step for n, step in steps),), (1,))
