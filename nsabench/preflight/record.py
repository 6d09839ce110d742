"""Call candidates on a pretended GPU, and record the kernels that they launch.

While a call is recorded, `JITFunction.run` is replaced. Later the original is called with `warmup`:
in every Triton from 3.0, it then compiles what a launch would, and does not launch it.
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
from torch._subclasses.fake_tensor import FakeTensorMode
from triton.runtime import autotuner, jit

from nsabench import ops
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, Status
from nsabench.ops import Inputs
from nsabench.preflight import pretend
from nsabench.preflight.targets import Architecture
from nsabench.registry import Implementation, KernelVariant
from nsabench.worker.guard import guarded

ALIGNMENT = 16  # Triton specialises on addresses and integers that are multiples of this
SMALL_BYTES = 256 << 20  # the largest inputs that are drawn with values
THREADS_PER_WARP = 32


@dataclass(frozen=True)
class CompiledKernel:
    cubin: bytes
    kernel: str  # the kernel's name in the cubin, or a part of that name
    warps: int
    dynamic_shared_bytes: int


@dataclass(frozen=True)
class Launchable:
    """A launch that can be compiled. `CompiledLaunch` explains the other fields.

    `origin` distinguishes kernels of the same name. `compile` raises what the compiler raises.
    `arguments` holds the launch's arguments by name, with a `Pointer` for each tensor.
    """

    kernel: str
    origin: str
    constants: str
    options: str
    compile: Callable[[], CompiledKernel]
    signature: str = ""
    compiler: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> str:
        """A hash that is equal for launches that compile to the same code."""
        text = "|".join([self.origin, self.signature, self.constants, self.options])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def describe(self) -> dict[str, str]:
        names = ("kernel", "signature", "constants", "options", "compiler")
        return {name: getattr(self, name) for name in names}


class Pointer:
    """Replaces a tensor: Triton reads its dtype and whether its address is aligned."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.dtype, self.shape = tensor.dtype, tuple(tensor.shape)
        self._address: int = tensor.storage_offset() * tensor.element_size()
        self._strides: tuple[int, ...] = tensor.stride()

    def data_ptr(self) -> int:
        return self._address

    def stride(self) -> tuple[int, ...]:
        return self._strides


_original_run = jit.JITFunction.run


def _make_call(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Launchable:
    given = {**dict(zip(function.arg_names, arguments, strict=False)), **keywords}
    named = {name: value for name, value in given.items() if name in function.arg_names}
    constant = {p.name for p in function.params if p.is_constexpr}
    plain = {p.name for p in function.params if p.do_not_specialize}
    # Some versions of Triton lack `do_not_specialize_on_alignment`.
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
    return Launchable(
        kernel=str(getattr(function, "__name__", function)),
        origin=f"{function.fn.__module__}.{function.fn.__qualname__}",
        constants=" ".join(constants),
        options=" ".join(options),
        compile=partial(_compile_kernel, function, arguments, keywords),
        signature=" ".join(signature),
        arguments=named,
    )


def _compile_kernel(
    function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]
) -> CompiledKernel:
    made = _original_run(function, *arguments, grid=(1,), warmup=True, **keywords)
    return CompiledKernel(
        made.asm["cubin"],
        str(made.metadata.name),
        int(made.metadata.num_warps),
        int(made.metadata.shared),
    )


def _is_descriptor(value: Any) -> bool:
    return is_dataclass(value) and hasattr(value, "base") and hasattr(value, "block_shape")


def _specialisation(value: Any, specialised: bool = True, by_alignment: bool = True) -> str:
    """Return what Triton specialises on: the type, and whether a value is 1 or aligned."""
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
def recording(note: Callable[[Launchable], None]) -> Iterator[None]:
    """Record launches, and run no kernel. An autotuner launches each configuration it keeps."""

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


def list_variants(item: Implementation, architecture: Architecture) -> list[Launchable]:
    """Return the kernels that an implementation compiles without Triton. Raises `Failure`."""
    compile_ahead = item.compile_ahead
    assert compile_ahead is not None
    return [
        Launchable(
            kernel=variant.kernel,
            origin=f"{item.source}|{variant.kernel}",
            constants=variant.constants,
            options=f"threads={variant.threads} dynamic_shared={variant.shared_bytes}",
            compile=partial(_compile_variant, variant),
            compiler=variant.compiler,
        )
        for variant in guarded(lambda: compile_ahead(architecture.capability), "cpu")
    ]


def _compile_variant(variant: KernelVariant) -> CompiledKernel:
    cubin = variant.compile()
    if not isinstance(cubin, bytes) or not cubin.startswith(b"\x7fELF"):
        raise TypeError("its compile() returned no cubin (bytes of an ELF file)")
    warps = -(-variant.threads // THREADS_PER_WARP)
    return CompiledKernel(cubin, variant.kernel, warps, variant.shared_bytes)


def list_launches(item: Implementation, case: Case, architecture: Architecture) -> list[Launchable]:
    """Return the launches of a call on the case. Raises `Failure` if the call fails.

    Tensors are on `meta`, without values. If the call fails there, but not as unsupported, it is
    repeated with tensors on the CPU, which have values, unless these would be too large.
    """
    try:
        return _record_calls(item, case, architecture, "meta")
    except Failure as first:
        if first.status is Status.UNSUPPORTED:
            raise
        if ops.work(case).bytes_min > SMALL_BYTES:
            raise Failure(
                Status.SKIPPED, f"it fails without values, and its inputs are too large: {first}"
            ) from first
        return _record_calls(item, case, architecture, "cpu")


def _record_calls(
    item: Implementation, case: Case, architecture: Architecture, real: str
) -> list[Launchable]:
    calls: list[Launchable] = []
    inputs = _make_inputs(case, real)

    def call() -> None:
        with recording(calls.append), pretend.operators_run(real), pretend.TensorsOnCuda(real):
            _call_item(item, case, inputs)

    with pretend.cuda(architecture):
        guarded(call, "cpu")
    return calls


def _make_inputs(case: Case, real: str) -> Inputs:
    op = ops.get(case.op)
    arguments = (ops.sizes(case), case.dtype, case.distribution, case.seed, "cpu")
    if real == "cpu":
        return op.draw(*arguments)
    with FakeTensorMode(allow_non_fake_inputs=True):
        drawn = op.draw(*arguments)
    tensors = {
        name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=real)
        for name, t in drawn.tensors.items()
    }
    return Inputs(tensors, drawn.options)


def _call_item(item: Implementation, case: Case, inputs: Inputs) -> None:
    tensors = dict(inputs.tensors)
    if case.direction is Direction.FORWARD:
        item.call(*tensors.values(), **inputs.options)
        return
    wanted = [tensors[name].requires_grad_() for name in ops.get(case.op).differentiable]
    out = item.call(*tensors.values(), **inputs.options)
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        raise Failure(Status.UNSUPPORTED, "its output has no grad_fn: it has no backward")
    # torch.autograd.grad would leave the mode `TensorsOnCuda` before the backward runs.
    torch.autograd.Variable._execution_engine.run_backward(
        (out,),
        (torch.empty_like(out),),
        False,
        False,
        tuple(wanted),
        allow_unreachable=True,
        accumulate_grad=False,
    )
