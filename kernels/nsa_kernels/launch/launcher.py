"""How every Triton kernel is launched.

    launch(kernel, grid, *arguments, CONSTANT=..., num_warps=...)

stands for ``kernel[grid](*arguments, CONSTANT=..., num_warps=...)``. The arguments are the tensors
first and the numbers behind them, in the order of the kernel's parameters; constants and options
go by name. The first launch of a kind is Triton's own and compiles the kernel. Later ones find it
by one look-up and call Triton's compiled launcher (``jit.direct``), unless somebody watches: where
hooks of a profiler are set, in the interpreter, and with a Triton that is not known, every launch
is Triton's own.

A kind is what Triton specialises on, and no less: the dtypes of the tensors and whether they are
aligned to 16 bytes; of whole numbers the width, and whether they are 1 or divisible by 16; the
constants and options; the device.

``replay.replayed`` goes further: it keeps all launches of a call, and its allocations.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch

from ..jit.direct import (
    AVAILABLE,
    PACKS,
    TAKES_CONSTANTS,
    Direct,
    current_stream,
    direct,
    undisturbed,
)
from .boxes import Boxed, Boxes, as_triton_takes, described, taken_apart
from .negative import resolved
from .tape import recording

Grid = tuple[int, ...]

_known: dict[int, tuple[Any, dict[Hashable, Direct]]] = {}
"""By the id of a kernel: the kernel, which keeps the id its own, and its compiled variants."""


class Launch(NamedTuple):
    """A launch as it was made: ``tail``, what the compiled launcher takes behind the pointers, some
    of which are copied in ``boxes``."""

    kernel: Any
    grid: tuple[int, int, int]
    numbers: tuple[Any, ...]
    constants: dict[str, Any]
    direct: Direct | None
    tail: tuple[Any, ...]
    boxes: Boxes = ()


def launch(kernel: Any, grid: Grid, *arguments: Any, **constants: Any) -> None:
    """Launch a kernel on the current device, which must be the tensors', and its stream.

    Args:
        kernel: a function under ``triton.jit``.
        grid: programs along one to three axes.
        arguments: tensors, then numbers. A negative view is read as what it stands for; none is
            written to. A tensor that the kernel copies in boxes is ``boxes.Boxed``.
        constants: its ``tl.constexpr`` parameters, and options such as ``num_warps``.

    Raises:
        What compiling or launching a kernel raises (``jit.compat.KERNEL_ERRORS``).
    """
    count = 0
    boxed = False
    while count < len(arguments) and isinstance(arguments[count], (torch.Tensor, Boxed)):
        boxed = boxed or isinstance(arguments[count], Boxed)
        count += 1
    pointers, numbers = arguments[:count], arguments[count:]
    boxes: Boxes = ()
    if boxed:
        pointers, boxes = taken_apart(pointers)
    if any(x.is_neg() for x in pointers):
        pointers = tuple([resolved(x) for x in pointers])
    x, y, z = (*grid, 1, 1)[:3]
    whole = (x, y, z)
    tail = numbers
    found = None
    if AVAILABLE and count and undisturbed() and not kernel.pre_run_hooks:
        device = pointers[0].get_device()
        variants = _known.setdefault(id(kernel), (kernel, {}))[1]
        tiles = tuple([box and box.tile for box in boxes])
        key = (device, tiles, *kind(pointers, numbers, constants))
        found = variants.get(key)
        if TAKES_CONSTANTS:
            tail = (*numbers, *in_order(kernel, constants))
        if found is not None:
            addresses: Sequence[Any] = [pointer.data_ptr() for pointer in pointers]
            if boxes:
                addresses = described(found, boxes)(addresses)
            call_direct(found, whole, current_stream(device), addresses, tail)
        else:
            made = kernel[grid](*as_triton_takes(pointers, boxes), *numbers, **constants)
            if has_usual_order(kernel, len(arguments)):
                found = direct(made)
            if found is not None:
                variants[key] = found
    else:
        kernel[grid](*as_triton_takes(pointers, boxes), *numbers, **constants)
    tape = recording()
    if tape is not None:
        tape.note(Launch(kernel, whole, numbers, constants, found, tail, boxes), pointers)


def kind(
    pointers: tuple[torch.Tensor, ...], numbers: tuple[Any, ...], constants: dict[str, Any]
) -> tuple[Hashable, ...]:
    """What a launch is specialised on, but for the kernel and the device."""
    return (
        tuple([(x.dtype, x.data_ptr() & 15 == 0) for x in pointers]),
        tuple([kind_of_number(x) for x in numbers]),
        tuple(constants.items()),
        # True and 1 are equal, and are other constants.
        tuple(map(type, constants.values())),
    )


def kind_of_number(x: Any) -> Hashable:
    """What a launch is specialised on of one number."""
    if x.__class__ is not int:
        # Before 3.3 a bool is specialised on as a whole number is.
        return (bool, x) if x.__class__ is bool else x.__class__
    if x == 1:
        return 1
    width = 32 if -(1 << 31) <= x < 1 << 31 else 64 if x < 1 << 63 else 65
    return width if x % 16 else -width


def in_order(kernel: Any, constants: dict[str, Any]) -> list[Any]:
    """The values of a kernel's constants in the order of its parameters."""
    return [constants.get(kernel.arg_names[i]) for i in kernel.constexprs]


def has_usual_order(kernel: Any, arguments: int) -> bool:
    """Whether a kernel's constants all stand behind so many arguments."""
    return bool(kernel.constexprs == list(range(arguments, len(kernel.arg_names))))


def _in_a_row(
    found: Direct, grid: tuple[int, int, int], stream: int, addresses: Sequence[Any], tail: Any
) -> None:
    found.call(*grid, stream, *found.before, *addresses, *tail)


def _in_a_tuple(
    found: Direct, grid: tuple[int, int, int], stream: int, addresses: Sequence[Any], tail: Any
) -> None:
    found.call(*grid, stream, *found.before, (*addresses, *tail))


call_direct: Callable[..., None] = _in_a_tuple if PACKS else _in_a_row
"""Call a compiled kernel on addresses, and what comes behind them."""
