"""What a launch is compiled from, as one hash: source, what it is specialised on, and the compiler.

Triton's own hash of a function is over its source and that of all that it calls.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import torch
import triton
import triton.language as tl
from triton.runtime import cache as triton_cache

from nsabench.execution.worker.guard import guarded
from nsabench.failure import Failure
from nsabench.preflight import build, compiled, driver, machine_code, record
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.record import Call, Pointer, in_boxes, is_described

_OWN = (build, compiled, driver, machine_code, record)
_KEY_OWNERS = (triton_cache, triton.compiler.compiler)  # of `triton_key`, by version
_PREFIXES = ("TRITON_", "LLVM_")
# What `@triton.jit` is told, which is no part of the source that Triton hashes.
_SETTINGS = (
    "debug",
    "noinline",
    "version",
    "do_not_specialize",
    "do_not_specialize_on_alignment",
)


class _Unknown(Exception):
    """A value of which nobody can say here what is compiled from it."""


def content(call: Call, architecture: Architecture) -> str:
    """The hash; empty where Triton cannot say what the source is, or for a value of a kind that is
    not known."""
    try:
        return guarded(lambda: _content(call, architecture), "cpu")
    except Failure:
        return ""


def _content(call: Call, architecture: Architecture) -> str:
    parts = [
        _compiler(),
        repr(architecture),
        _source(call.function),
        call.key(),
        *(f"{name}={value}" for name, value in _values(call)),
    ]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _values(call: Call) -> Iterator[tuple[str, str]]:
    """Every argument and option by its name. A default is not in the source where that names it."""
    constants = {p.name for p in call.function.params if p.is_constexpr}
    given = call.named()
    for name, value in given.items():
        # What is no parameter is an option of the compiler.
        exact = name in constants or name not in call.function.arg_names
        yield name, _written(value, exact)
    for parameter in inspect.signature(call.function.fn).parameters.values():
        if parameter.name not in given and parameter.default is not parameter.empty:
            yield parameter.name, _written(parameter.default, True)


def _written(value: Any, exact: bool) -> str:
    """A value as far as code depends on it. Numbers that are not constants, and pointers, are in
    the signature already, which `Call.key` has. Raises `_Unknown`."""
    kind = type(value).__name__
    if isinstance(value, tl.constexpr):
        return f"constexpr({_written(value.value, True)})"
    if isinstance(value, tuple | list):  # a named one also with the names of its fields
        fields = getattr(value, "_fields", ())
        return f"{kind}{fields}({', '.join(_written(one, exact) for one in value)})"
    if hasattr(value, "cache_key"):
        return _source(value)
    if is_described(value) and not exact:
        return in_boxes(value)
    if isinstance(value, Pointer) and not exact:
        return kind
    if value is None or isinstance(value, bool | int | float):
        return f"{kind}:{value!r}" if exact else kind
    if isinstance(value, str | tl.dtype | torch.dtype):  # Triton takes these for constants
        return f"{kind}:{value}"
    raise _Unknown(f"it is handed a {kind}")


def _source(function: Any) -> str:
    """A function with what it calls, the values that it reads, and how it was declared."""
    hashed = str(function.cache_key)  # also looks for the globals that it uses
    used = getattr(function, "used_global_vals", {})
    values = sorted((str(name), repr(found[0])) for (name, _), found in used.items())
    settings = [f"{name}={getattr(function, name, None)!r}" for name in _SETTINGS]
    return f"{type(function).__name__} {hashed} {values} {settings}"


@cache
def _compiler() -> str:
    """The Triton that is here, by the files that decide what it makes; and what reads the cubin."""
    root = Path(triton.__file__).parent
    tools = [
        root / "_C" / "libtriton.so",
        *sorted((root / "backends/nvidia/bin").glob("*")),
        *sorted((root / "backends/nvidia/lib").glob("*.bc")),
        *sorted((root / "runtime").glob("*.py")),
        # Triton's own hash of its files leaves this language out.
        *sorted((root / "experimental/gluon").rglob("*.py")),
    ]
    own = "".join(inspect.getsource(module) for module in _OWN)
    parts = [
        triton.__version__,
        _files(),
        platform.python_version(),
        [(t.name, t.stat().st_size, t.stat().st_mtime_ns) for t in tools if t.is_file()],
        _environment(),
        hashlib.sha256(own.encode()).hexdigest(),
    ]
    return json.dumps(parts)


def _files() -> str:
    """Triton's own hash of its compiler and language; empty where this Triton has none."""
    for module in _KEY_OWNERS:
        if hasattr(module, "triton_key"):
            return str(module.triton_key())
    return ""


def _environment() -> dict[str, str]:
    """The variables that change what is compiled: those that Triton says do, where it says so, and
    all that are named like its own."""
    given = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    given.pop("TRITON_CACHE_DIR", None)
    ask = getattr(triton._C.libtriton, "get_cache_invalidating_env_vars", None)
    said: dict[str, str] = ask() if ask is not None else {}
    return dict(sorted({**given, **{f"said {name}": v for name, v in said.items()}}.items()))
