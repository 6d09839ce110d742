"""Limits and features of a GPU, and a decorator that launches on the GPU of the tensors."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch
import triton

from ..jit.compat import HAS_GLUON, HAS_PDL

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Device:
    """Multiprocessors of a GPU, and the bytes of shared memory that one program may use."""

    processors: int
    shared_bytes: int


CPU_LIMITS = Device(processors=4, shared_bytes=99 * 1024)


@functools.lru_cache(maxsize=64)
def device_limits(device: torch.device) -> Device:
    """Return the limits of a device. For a CPU, where kernels are interpreted, they are small."""
    if device.type != "cuda":
        return CPU_LIMITS
    props = torch.cuda.get_device_properties(device)
    # torch < 2.6 does not report this limit. The smallest limit of all supported GPUs is safe.
    shared = int(getattr(props, "shared_memory_per_block_optin", 99 * 1024))
    return Device(processors=props.multi_processor_count, shared_bytes=shared)


@functools.lru_cache(maxsize=64)
def dependent_launch(device: torch.device) -> bool:
    """Return whether a launch can begin before the previous launch has ended (``jit.compat``)."""
    return HAS_PDL and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.lru_cache(maxsize=64)
def runs_gluon(device: torch.device) -> bool:
    """Return whether the device runs the kernels in Gluon, which are for Hopper. If not, their
    modules must not be imported."""
    there = HAS_GLUON and device.type == "cuda"
    return there and torch.cuda.get_device_capability(device) == (9, 0)


def launch_options(pdl: bool) -> dict[str, bool]:
    """Return the options of a dependent launch. Old versions of Triton reject the option."""
    return {"launch_pdl": True} if pdl else {}


def on_its_device(launch: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function that launches kernels: make the device of its first argument the current
    one, and pass each argument through ``normalised``.

    Triton launches on the current device and its stream, wherever the tensors are.

    Raises:
        RuntimeError: Triton cannot compile or launch a kernel. ``__cause__`` is Triton's error.
    """
    first = launch.__code__.co_varnames[0]

    @functools.wraps(launch)
    def there(*args: P.args, **kwargs: P.kwargs) -> T:
        given: Any = [normalised(x) for x in args]
        named: Any = {name: normalised(x) for name, x in kwargs.items()}
        index = (given[0] if given else named[first]).get_device()
        try:
            if index < 0 or index == torch.cuda.current_device():
                return launch(*given, **named)
            with torch.cuda.device(index):
                return launch(*given, **named)
        except Exception as error:
            if not _is_raised_by_triton(error):
                raise
            raise RuntimeError(_describe_failure(launch.__module__, index, error)) from error

    return there


def _is_raised_by_triton(error: Exception) -> bool:
    """Return whether an error comes from Triton's code. Torch's out-of-memory error does not."""
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    raised_in = "" if trace is None else str(trace.tb_frame.f_globals.get("__name__", ""))
    return raised_in.partition(".")[0] == "triton" or type(error).__module__.startswith("triton.")


def _describe_failure(name: str, index: int, error: Exception) -> str:
    device = "the CPU"
    if index >= 0:
        major, minor = torch.cuda.get_device_capability(index)
        device = f"{torch.cuda.get_device_name(index)} (compute capability {major}.{minor})"
    reason = (str(error).strip() or type(error).__name__).splitlines()[0].rstrip(".")
    return (
        f"{name}: Triton {triton.__version__} cannot run a kernel on {device}: {reason}. The "
        "kernels need compute capability 8.0 or higher; if the GPU has it, report this message and "
        "the shapes of the tensors."
    )


def normalised(x: Any) -> Any:
    """Return ``x``, or a copy that kernels can take: not a negative view, and contiguous in its
    last dimension.

    Torch keeps the minus sign of a negative view (``z.conj().imag``) as a bit that kernels do not
    see.
    """
    if not isinstance(x, torch.Tensor):
        return x
    return x.resolve_neg().contiguous() if x.is_neg() or not _ends_in_rows(x) else x


def _ends_in_rows(x: torch.Tensor) -> bool:
    return x.dim() == 0 or x.shape[-1] <= 1 or x.stride(-1) == 1
