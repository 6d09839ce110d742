"""The decorator that registers the shipped baselines."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch import Tensor

from nsabench import implementation

F = TypeVar("F", bound=Callable[..., Any])

# cu_seqlens int32 [n+1] of packed sequences, or None if all sequences are equally long.
Packing = Tensor | None


def baseline(
    op: str, name: str, *, on_cpu: bool = False, role: str = "baseline", **declared: Any
) -> Callable[[F], F]:
    devices = ("cuda", "cpu") if on_cpu else ("cuda",)
    return implementation(op=op, name=name, role=role, devices=devices, **declared)
