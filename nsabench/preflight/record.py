"""Records launches of Triton kernels, and compiles them later.

While a call is recorded, `JITFunction.run` is replaced. Later the original runs with `warmup`,
which compiles as a launch does, in every Triton from 3.0.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any
from unittest import mock

import torch
from triton.runtime import autotuner, jit

ALIGNMENT = 16  # bytes or units: what Triton specialises pointers and integers on


@dataclass(frozen=True)
class Compiled:
    """A compiled kernel. kernel: its name in the cubin, or a part of it."""

    cubin: bytes
    kernel: str
    warps: int
    dynamic_shared_bytes: int


@dataclass(frozen=True)
class Call:
    """A launch that can be compiled.

    origin: distinguishes kernels of the same name. compiler: empty for Triton.
    compile: raises what the compiler raises. arguments: by name, with `Pointer`s for tensors.
    """

    kernel: str
    origin: str
    constants: str
    options: str
    compile: Callable[[], Compiled]
    signature: str = ""
    compiler: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A hash that is equal for launches that compile to the same code."""
        text = "|".join([self.origin, self.signature, self.constants, self.options])
        return hashlib.sha256(text.encode()).hexdigest()[:16]


class Pointer:
    """Stands for a tensor: Triton reads its dtype and whether its address is aligned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset: int = tensor.storage_offset() * tensor.element_size()
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self._strides: tuple[int, ...] = tensor.stride()

    def data_ptr(self) -> int:
        return self._offset

    def stride(self) -> tuple[int, ...]:
        return self._strides


_original_run = jit.JITFunction.run


def _make_call(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Call:
    """Return the launch of a Triton kernel. keywords: include compiler options."""
    given = {**dict(zip(function.arg_names, arguments, strict=False)), **keywords}
    named = {name: value for name, value in given.items() if name in function.arg_names}
    constant = {p.name for p in function.params if p.is_constexpr}
    plain = {p.name for p in function.params if p.do_not_specialize}
    # Some Tritons lack this attribute.
    at_any_address = plain | {
        p.name for p in function.params if getattr(p, "do_not_specialize_on_alignment", False)
    }
    signature = [
        f"{name}:{_specialisation(value, name not in plain, name not in at_any_address)}"
        for name, value in named.items()
        if name not in constant
    ]
    constants = [f"{name}={_format(given[name])}" for name in given if name in constant]
    options = [f"{name}={given[name]}" for name in sorted(given) if name not in named]
    return Call(
        kernel=str(getattr(function, "__name__", function)),
        origin=f"{function.fn.__module__}.{function.fn.__qualname__}",
        constants=" ".join(constants),
        options=" ".join(options),
        compile=partial(_compile, function, arguments, keywords),
        signature=" ".join(signature),
        arguments=named,
    )


def _compile(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Compiled:
    made = _original_run(function, *arguments, grid=(1,), warmup=True, **keywords)
    return Compiled(
        made.asm["cubin"],
        str(made.metadata.name),
        int(made.metadata.num_warps),
        int(made.metadata.shared),
    )


def _is_descriptor(value: Any) -> bool:
    """Return whether a value is a tensor descriptor of Triton or Gluon."""
    return is_dataclass(value) and hasattr(value, "base") and hasattr(value, "block_shape")


def _specialisation(value: Any, specialised: bool = True, by_alignment: bool = True) -> str:
    """Return what a launch specialises on: the type, and whether a value is 1 or aligned."""
    if isinstance(value, Pointer):
        aligned = value.data_ptr() % ALIGNMENT == 0 or not by_alignment
        return f"*{str(value.dtype).removeprefix('torch.')}{'' if aligned else '?'}"
    if _is_descriptor(value):
        layout = getattr(value, "layout", None)
        dtype = str(value.base.dtype).removeprefix("torch.")
        return f"boxes<{dtype},{list(value.block_shape)},{layout},{getattr(value, 'padding', '')}>"
    if isinstance(value, bool) or value is None:
        return str(value)
    if isinstance(value, int):
        if value == 1 and specialised:
            return "1"
        wide = "i32" if -(2**31) <= value < 2**31 else "i64"
        return f"{wide}{'/16' if by_alignment and value % ALIGNMENT == 0 else ''}"
    if isinstance(value, tuple | list):
        return f"({','.join(map(_specialisation, value))})"
    return type(value).__name__


def _format(value: Any) -> str:
    inner = getattr(value, "value", value)
    return str(getattr(inner, "__name__", inner))


def _make_pointers(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Pointer(value)
    if _is_descriptor(value):
        return replace(value, base=Pointer(value.base))
    if type(value) is tuple:
        return tuple(map(_make_pointers, value))
    return value


@contextmanager
def recording(note: Callable[[Call], None]) -> Iterator[None]:
    """Record launches instead of running kernels, with every autotune configuration."""

    def launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        keywords = {name: _make_pointers(value) for name, value in kwargs.items()}
        note(_make_call(self, tuple(map(_make_pointers, args)), keywords))

    def every_configuration(self: Any, *args: Any, **kwargs: Any) -> None:
        self.nargs = dict(zip(self.arg_names, args, strict=False))
        try:
            pruned = self.prune_configs(kwargs) if len(self.configs) > 1 else self.configs
        finally:
            self.nargs = None
        for config in pruned:
            self.fn.run(*args, **kwargs, **config.all_kwargs())

    with (
        mock.patch.object(jit.JITFunction, "run", launch),
        mock.patch.object(autotuner.Autotuner, "run", every_configuration),
    ):
        yield
