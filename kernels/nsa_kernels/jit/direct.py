"""A compiled kernel called past ``JITFunction.run``: what differs between Tritons 3.0 and 3.9.

``JITFunction.run`` binds the arguments, makes a key of text and looks for the kernel in every
launch, which takes 10 to 20 us. The launcher in C that it ends in takes 3. Its signature changed
with 3.3, 3.4, 3.5 and 3.7; what it takes between the stream and the arguments of the kernel never
changes for a compiled kernel, so that is made once.

Nothing here is assumed of a Triton that is not known: ``AVAILABLE`` is then False, ``direct`` None.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import triton
from triton.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

from .compat import CPU_ALLOWED, TRITON_VERSION

VARIABLE = "NSA_KERNELS_LAUNCH"
"""``triton``: every launch is Triton's own. Otherwise they go past it, where that can be."""

_KNOWN = (3, 0, 0) <= TRITON_VERSION < (3, 10, 0)
AVAILABLE: bool = (
    os.environ.get(VARIABLE) != "triton"
    and _KNOWN
    and not CPU_ALLOWED
    and torch.version.cuda is not None
    and torch.version.hip is None
    and hasattr(torch._C, "_cuda_getCurrentRawStream")
)
"""Whether compiled kernels are called directly at all: not in the interpreter, nor where launches
are recorded and not run, nor on other GPUs than NVIDIA's, nor where it was asked for not to be."""

TAKES_CONSTANTS: bool = TRITON_VERSION >= (3, 3, 0)
"""Whether the launcher is given the constants, too, behind the arguments."""
PACKS: bool = TRITON_VERSION >= (3, 7, 0)
"""Whether it takes all arguments of the kernel as one tuple."""

_run = JITFunction.run

if TRITON_VERSION >= (3, 4, 0):
    from triton import knobs

    def undisturbed() -> bool:
        """Whether nobody watches launches or asked for other kernels: no hook of a profiler, no
        debug build, no instrumentation, ``JITFunction.run`` as Triton has it."""
        runtime = knobs.runtime
        return not (
            # A chain of hooks, empty or not; before 3.5 one hook or None.
            getattr(runtime.launch_enter_hook, "calls", runtime.launch_enter_hook)
            or getattr(runtime.launch_exit_hook, "calls", runtime.launch_exit_hook)
            or runtime.debug
            or getattr(runtime, "add_stages_inspection_hook", None)
            or getattr(knobs.compilation, "instrumentation_mode", None)
            or JITFunction.run is not _run
        )

else:

    def undisturbed() -> bool:
        """Whether nobody watches launches or asked for other kernels: no hook of a profiler, no
        debug build, ``JITFunction.run`` as Triton has it."""
        return (
            CompiledKernel.launch_enter_hook is None
            and CompiledKernel.launch_exit_hook is None
            and os.environ.get("TRITON_DEBUG", "0") != "1"
            and JITFunction.run is _run
        )


def current_stream(device: int) -> int:
    """The raw handle of a device's current stream: 0.1 us, where torch's object takes 4."""
    return int(torch._C._cuda_getCurrentRawStream(device))


class Direct(NamedTuple):
    """A compiled kernel's launcher, and what it takes between the stream and the arguments."""

    call: Callable[..., Any]
    before: tuple[Any, ...]
    # Of each argument that is copied in boxes (``launch.boxes``), what its descriptor is made by.
    boxes: tuple[dict[str, Any], ...] = ()


def direct(compiled: Any) -> Direct | None:
    """How to call a kernel that ``JITFunction.run`` returned; None: only as it does.

    One that needs scratch memory goes through Triton's launcher in Python, which allocates it.
    """
    from triton.backends.nvidia.driver import CudaLauncher

    if not AVAILABLE or type(compiled) is not CompiledKernel:
        return None
    launcher: Any = compiled.run
    if type(launcher) is not CudaLauncher or getattr(launcher, "gsan_enabled", False):
        return None
    nothing = (None, None, None)  # metadata for hooks, and the hooks
    packed = compiled.packed_metadata
    if getattr(launcher, "global_scratch_size", 0) or getattr(launcher, "profile_scratch_size", 0):
        return None if PACKS else Direct(launcher, (compiled.function, packed, *nothing))
    before: tuple[Any, ...] = (compiled.function,)
    if TRITON_VERSION >= (3, 3, 0):
        before += (launcher.launch_cooperative_grid,)
    if TRITON_VERSION >= (3, 4, 0):
        before += (launcher.launch_pdl,)
    scratch: tuple[None, ...] = (None, None)
    if TRITON_VERSION < (3, 5, 0):
        scratch = (None,) if TRITON_VERSION >= (3, 3, 0) else ()
    if PACKS:
        before += (packed, *nothing, *scratch, launcher.arg_annotations, launcher.kernel_signature)
    else:
        before += (*scratch, packed, *nothing)
    boxes = tuple(getattr(compiled.metadata, "tensordesc_meta", None) or ())
    if not boxes:
        return Direct(launcher.launch, before)
    # Triton wraps the launcher in one that makes all descriptors anew in each launch.
    inner = inspect.getclosurevars(launcher.launch).nonlocals.get("launcher")
    return None if PACKS or inner is None else Direct(inner, before, boxes)


def descriptor(
    kind: dict[str, Any], address: int, shape: tuple[int, ...], strides: tuple[int, ...]
) -> tuple[Any, ...]:
    """What the compiled launcher takes in place of a tensor that is copied in boxes: the
    descriptor, which is of the memory and not of the tensor, its shape and strides."""
    from triton.backends.nvidia.driver import TMA_DTYPE_DEVICE_TO_HOST

    utils: Any = triton.runtime.driver.active.utils
    made = utils.fill_tma_descriptor(
        *(address, kind["swizzle"], kind["elem_size"]),
        *(TMA_DTYPE_DEVICE_TO_HOST[kind["elem_type"]], kind["block_size"]),
        *(shape, strides, 0),
    )
    return (made, *shape, *strides)
