"""Compiles a launch to a cubin and reads the resources of the kernel."""

from __future__ import annotations

import re
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton
from triton.compiler.errors import CompilationError

from nsabench.failure import Failure
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import KIB, RESERVED_SHARED, Architecture
from nsabench.preflight.launch import CompiledLaunch
from nsabench.preflight.record import Call, Compiled
from nsabench.worker.guard import guarded, one_line

REASON_LENGTH = 400
_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_TOOL_LIMIT_S = 60


def build(launch: CompiledLaunch, call: Call, architecture: Architecture) -> CompiledLaunch:
    """Compile a launch. Errors become statuses; an abort of the compiler ends this process."""
    began = time.monotonic()
    try:
        compiled = guarded(call.compile, "cpu")
    except Failure as failure:
        # All exceptions here come from the compiler.
        status = Status.COMPILE_ERROR if failure.status is Status.CRASHED else failure.status
        changed = {"status": status, "reason": _explain(failure)}
        return launch.model_copy(update={**changed, "compile_s": time.monotonic() - began})
    compile_s = time.monotonic() - began
    usage = _read_usage(compiled)
    static = usage.shared_bytes if usage is not None else 0
    if static and architecture.capability >= 90:
        static -= RESERVED_SHARED  # limits do not count it
    shared = compiled.dynamic_shared_bytes + static
    status, reason = Status.OK, ""
    if shared > architecture.shared_per_block:
        status = Status.OUT_OF_MEMORY
        reason = (
            f"it needs {shared / KIB:.1f} KiB of shared memory and {architecture.name} gives a "
            f"block {architecture.shared_per_block // KIB} KiB"
        )
    return launch.model_copy(
        update={
            "status": status,
            "reason": reason,
            "registers": usage.registers if usage is not None else None,
            "spill_bytes": usage.spill_bytes if usage is not None else None,
            "shared_bytes": shared,
            "shared_limit_bytes": architecture.shared_per_block,
            "warps": compiled.warps,
            "cubin_bytes": len(compiled.cubin),
            "compile_s": compile_s,
        }
    )


def _explain(failure: Failure) -> str:
    """Return the innermost error; each nested kernel quotes its own source before it."""
    error: BaseException = failure
    while error.__cause__ is not None:
        error = error.__cause__
    text = one_line(error, limit=10_000)
    if isinstance(error, CompilationError):
        # The message follows a line of source and a caret.
        _, caret, message = text.rpartition("^ ")
        text = f"{message} ({text[: text.find(':')]})" if caret else text
    return f"{type(error).__name__}: {text[:REASON_LENGTH]}"


@dataclass(frozen=True)
class Usage:
    """The most that a kernel takes. A thread: registers, spill_bytes. A block: shared_bytes."""

    registers: int
    spill_bytes: int
    shared_bytes: int  # static, with the driver's share


def _read_usage(compiled: Compiled) -> Usage | None:
    """Return what a kernel takes; None if Triton's cuobjdump does not say."""
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.cubin)
        file.flush()
        try:
            done = subprocess.run(
                [tool, "-res-usage", file.name],
                capture_output=True,
                text=True,
                timeout=_TOOL_LIMIT_S,
                check=True,
            )
        except (OSError, subprocess.SubprocessError):
            return None
    found = [m for m in _FUNCTION.findall(done.stdout) if compiled.kernel in m[0]]
    if not found:
        return None
    counts = [[int(number) for number in numbers] for _, *numbers in found]
    registers, stack, shared, local = map(max, zip(*counts, strict=True))
    return Usage(registers, max(stack, local), shared)
