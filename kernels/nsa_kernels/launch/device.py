"""What a launch needs to know of the device: its limits, and how to be on it."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

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
    """Decorates a launcher: it runs with its first argument's device as the current one.

    Triton launches on the current device and its stream, wherever the tensors are.
    """
    first = launch.__code__.co_varnames[0]

    @functools.wraps(launch)
    def there(*args: P.args, **kwargs: P.kwargs) -> T:
        index = (args[0] if args else kwargs[first]).get_device()  # type: ignore[attr-defined]
        if index < 0 or index == torch.cuda.current_device():
            return launch(*args, **kwargs)
        with torch.cuda.device(index):
            return launch(*args, **kwargs)

    return there
