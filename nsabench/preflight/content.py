"""Hashes all that a launch is compiled from: source, specialisation and compiler.

Triton's own hash of a function covers its source and that of all that it calls.
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
from nsabench.preflight import build, compiled, machine_code, pretend, record
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.record import Call, Pointer, in_boxes, is_described

_OWN = (build, compiled, machine_code, pretend, record)
_KEY_OWNERS = (triton_cache, triton.compiler.compiler)  # of `triton_key`, by version
_PREFIXES = ("TRITON_", "LLVM_")
# Arguments of `@triton.jit`, which Triton's hash leaves out.
_SETTINGS = (
    "debug",
    "noinline",
    "version",
    "do_not_specialize",
    "do_not_specialize_on_alignment",
)


class _Unknown(Exception):
    """The code may depend on this value in an unknown way."""


def content(call: Call, architecture: Architecture) -> str:
    """Return the hash; empty if the source or the kind of a value is unknown."""
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
    """Yield every argument and option by name, with defaults that the source only names."""
    constants = {p.name for p in call.function.params if p.is_constexpr}
    given = call.named()
    for name, value in given.items():
        # Other names are options of the compiler.
        exact = name in constants or name not in call.function.arg_names
        yield name, _written(value, exact)
    for parameter in inspect.signature(call.function.fn).parameters.values():
        if parameter.name not in given and parameter.default is not parameter.empty:
            yield parameter.name, _written(parameter.default, True)


def _written(value: Any, exact: bool) -> str:
    """Return a value as far as code depends on it. Raises `_Unknown`.

    exact: whether it is a constant. `Call.key` has the signature of all others.
    """
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
    if isinstance(value, str | tl.dtype | torch.dtype):  # constants for Triton
        return f"{kind}:{value}"
    raise _Unknown(f"it is handed a {kind}")


def _source(function: Any) -> str:
    """Return a function with its callees, the globals that it reads, and its declaration."""
    hashed = str(function.cache_key)  # this also finds the globals
    used = getattr(function, "used_global_vals", {})
    values = sorted((str(name), repr(found[0])) for (name, _), found in used.items())
    settings = [f"{name}={getattr(function, name, None)!r}" for name in _SETTINGS]
    return f"{type(function).__name__} {hashed} {values} {settings}"


@cache
def _compiler() -> str:
    """Return the versions of the files that compile, and of those that read the cubin."""
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
    """Return Triton's own hash of its compiler and language; empty if it has none."""
    for module in _KEY_OWNERS:
        if hasattr(module, "triton_key"):
            return str(module.triton_key())
    return ""


def _environment() -> dict[str, str]:
    """Return the variables that change what is compiled, by Triton's own list and by prefix."""
    given = {name: value for name, value in os.environ.items() if name.startswith(_PREFIXES)}
    given.pop("TRITON_CACHE_DIR", None)
    ask = getattr(triton._C.libtriton, "get_cache_invalidating_env_vars", None)
    said: dict[str, str] = ask() if ask is not None else {}
    return dict(sorted({**given, **{f"said {name}": v for name, v in said.items()}}.items()))
