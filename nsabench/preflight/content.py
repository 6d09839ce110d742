"""What a launch is compiled from, as one hash: source, what it is specialised on, and the compiler.

Triton's own hash of a function is over its source and that of all that it calls.
"""

from __future__ import annotations

import hashlib
import inspect
import json
import os
import platform
from functools import cache
from pathlib import Path
from typing import Any

import triton

from nsabench.execution.failure import Failure
from nsabench.execution.worker.guard import guarded
from nsabench.preflight import build, compiled, machine_code
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.record import Call


def content(call: Call, architecture: Architecture) -> str:
    """The hash; empty where Triton cannot say what the source is."""
    try:
        return guarded(lambda: _content(call, architecture), "cpu")
    except Failure:
        return ""


def _content(call: Call, architecture: Architecture) -> str:
    functions = [call.function, *map(_inner, (*call.arguments, *call.keywords.values()))]
    sources = [_source(one) for one in functions if hasattr(one, "cache_key")]
    parts = [_compiler(), repr(architecture), *sources, call.key()]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def _inner(value: Any) -> Any:
    """A function that a kernel is handed to call is a part of its source."""
    return getattr(value, "value", value)


def _source(function: Any) -> str:
    hashed = str(function.cache_key)  # also looks for the globals that it uses
    used = getattr(function, "used_global_vals", {})
    values = sorted((str(name), repr(found[0])) for (name, _), found in used.items())
    return f"{hashed} {values}"


@cache
def _compiler() -> str:
    """The Triton that is here, by the files that decide what it makes; and what reads the cubin."""
    root = Path(triton.__file__).parent
    tools = [root / "_C" / "libtriton.so", *sorted((root / "backends/nvidia/bin").glob("*"))]
    given = {n: v for n, v in sorted(os.environ.items()) if n.startswith(("TRITON_", "LLVM_"))}
    given.pop("TRITON_CACHE_DIR", None)
    own = "".join(inspect.getsource(module) for module in (build, compiled, machine_code))
    parts = [
        triton.__version__,
        platform.python_version(),
        [(t.name, t.stat().st_size, t.stat().st_mtime_ns) for t in tools if t.is_file()],
        given,
        hashlib.sha256(own.encode()).hexdigest(),
    ]
    return json.dumps(parts)
