"""What a launch needs to know of the device: its limits, and how to be on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar

import torch

from ..jit.compat import HAS_GLUON, HAS_PDL

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Device:
    """What the rules need to know of a GPU: multiprocessors, shared memory a program may use."""

    processors: int
    shared_bytes: int


CPU_LIMITS = Device(processors=4, shared_bytes=99 * 1024)


@functools.lru_cache(maxsize=64)
def device_limits(device: torch.device) -> Device:
    """Limits of a device, read once; the interpreter (CPU) is given small ones."""
    if device.type != "cuda":
        return CPU_LIMITS
    props = torch.cuda.get_device_properties(device)
    # torch < 2.6 does not report the opt-in limit; the smallest of all supported GPUs is safe.
    shared = int(getattr(props, "shared_memory_per_block_optin", 99 * 1024))
    return Device(processors=props.multi_processor_count, shared_bytes=shared)


@functools.lru_cache(maxsize=64)
def dependent_launch(device: torch.device) -> bool:
    """Whether a launch can start its programs before the one it depends on has ended."""
    return HAS_PDL and device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


@functools.lru_cache(maxsize=64)
def runs_gluon(device: torch.device) -> bool:
    """Whether kernels in Gluon are launched, which are for Hopper alone. Their modules are imported
    where that holds, and nowhere else."""
    there = HAS_GLUON and device.type == "cuda"
    return there and torch.cuda.get_device_capability(device) == (9, 0)


def launch_options(pdl: bool) -> dict[str, bool]:
    """Options of a dependent launch; Tritons that cannot make one do not know the option."""
    return {"launch_pdl": True} if pdl else {}


def on_its_device(launch: Callable[P, T]) -> Callable[P, T]:
    """Decorate what launches kernels: it runs with its first argument's device as the current one,
    and reads negative views as what they stand for.

    Triton launches on the current device and its stream, wherever the tensors are.
    """
    first = launch.__code__.co_varnames[0]

    @functools.wraps(launch)
    def there(*args: P.args, **kwargs: P.kwargs) -> T:
        given: Any = [resolved(x) for x in args]
        named: Any = {name: resolved(x) for name, x in kwargs.items()}
        index = (given[0] if given else named[first]).get_device()
        if index < 0 or index == torch.cuda.current_device():
            return launch(*given, **named)
        with torch.cuda.device(index):
            return launch(*given, **named)

    return there


def resolved(x: Any) -> Any:
    """Return ``x``, a tensor where its memory holds its values, as a kernel reads them.

    Torch notes the minus of a negative view, such as ``z.conj().imag``, and leaves the memory as it
    is. Of one the values are copied, under the same size and strides.
    """
    if not isinstance(x, torch.Tensor) or not x.is_neg():
        return x
    held = torch._neg_view(x.detach())
    if held.numel() == 0:
        return held
    steps = zip(held.shape, held.stride(), strict=True)
    room = 1 + sum((n - 1) * step for n, step in steps)
    return held.as_strided((room,), (1,)).neg().as_strided(held.shape, held.stride(), 0)
