"""Records launches of Triton kernels instead of launching them, and compiles them later.

`JITFunction.run` is replaced while a call is recorded. Later the original is called with `warmup`,
which specialises and compiles as a launch would. Every Triton from 3.0 has that switch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, is_dataclass, replace
from typing import Any
from unittest import mock

import torch
from triton.runtime import autotuner, jit

from nsabench.preflight.compiled import Compiled

ALIGNMENT = 16  # bytes or units: what Triton specialises pointers and integers on


class Pointer:
    """Stands for a tensor. Triton reads its dtype and whether its address is aligned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype = tensor.dtype
        self._offset: int = tensor.storage_offset() * tensor.element_size()
        self.shape: tuple[int, ...] = tuple(tensor.shape)
        self._strides: tuple[int, ...] = tensor.stride()

    def data_ptr(self) -> int:
        return self._offset

    def stride(self) -> tuple[int, ...]:
        return self._strides


@dataclass(frozen=True)
class Call:
    """A launch of a kernel, with `Pointer`s instead of tensors."""

    function: Any
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]

    @property
    def kernel(self) -> str:
        return str(getattr(self.function, "__name__", self.function))

    @property
    def compiler(self) -> str:
        return ""

    def named(self) -> dict[str, Any]:
        """Return the arguments and the options of the compiler by name."""
        return {**dict(zip(self.function.arg_names, self.arguments, strict=False)), **self.keywords}

    def signature(self) -> str:
        constants = self._constant_names()
        params = self.function.params
        plain = {p.name for p in params if p.do_not_specialize}
        # Not every Triton has this attribute.
        anyhow = {p.name for p in params if getattr(p, "do_not_specialize_on_alignment", False)}
        return " ".join(
            f"{name}:{_kind(value, name not in plain, name not in plain | anyhow)}"
            for name, value in self.named().items()
            if name not in constants and name in self.function.arg_names
        )

    def constants(self) -> str:
        constants = self._constant_names()
        return " ".join(
            f"{name}={_shown(value)}" for name, value in self.named().items() if name in constants
        )

    def options(self) -> str:
        given = {k: v for k, v in self.keywords.items() if k not in self.function.arg_names}
        return " ".join(f"{name}={value}" for name, value in sorted(given.items()))

    def _constant_names(self) -> set[str]:
        return {p.name for p in self.function.params if p.is_constexpr}

    def key(self) -> str:
        """Return a hash that is equal for launches that compile to the same code."""
        where = f"{self.function.fn.__module__}.{self.function.fn.__qualname__}"
        text = "|".join([where, self.signature(), self.constants(), self.options()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def compile(self) -> Compiled:
        """Compile as a launch would. Raises what the compiler raises."""
        made = _original_run(
            self.function, *self.arguments, grid=(1,), warmup=True, **self.keywords
        )
        return Compiled(
            made.asm["cubin"],
            str(made.metadata.name),
            int(made.metadata.num_warps),
            int(made.metadata.shared),
            "wgmma" in made.asm["ptx"],
        )


_original_run = jit.JITFunction.run


def _is_descriptor(value: Any) -> bool:
    """Return whether it is a tensor descriptor of Triton or Gluon."""
    return is_dataclass(value) and hasattr(value, "base") and hasattr(value, "block_shape")


def _kind(value: Any, specialised: bool = True, by_alignment: bool = True) -> str:
    """Return what a launch specialises on: the type, and whether the value is 1 or aligned."""
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
        return f"({','.join(map(_kind, value))})"
    return type(value).__name__


def _shown(value: Any) -> str:
    inner = getattr(value, "value", value)
    return str(getattr(inner, "__name__", inner))


def _pointers(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return Pointer(value)
    if _is_descriptor(value):
        return replace(value, base=Pointer(value.base))
    if type(value) is tuple:
        return tuple(map(_pointers, value))
    return value


@contextmanager
def recording(note: Callable[[Call], None]) -> Iterator[None]:
    """Let no kernel run. note: receives each launch, with every autotune configuration."""

    def launch(self: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> None:
        arguments = tuple(map(_pointers, args))
        keywords = {name: _pointers(value) for name, value in kwargs.items()}
        note(Call(self, arguments, keywords))

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
