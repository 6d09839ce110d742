"""Compiles a recorded launch to a cubin and reads from it what it takes to run."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

from nsabench.failure import Failure
from nsabench.preflight.architectures import KIB, Architecture
from nsabench.preflight.messages import Built
from nsabench.preflight.record import Call
from nsabench.words import Status
from nsabench.worker.guard import guarded, one_line

_USAGE = re.compile(r"REG:(\d+) STACK:(\d+) SHARED:(\d+) LOCAL:(\d+)")
_TOOL_LIMIT_S = 60
REASON_LENGTH = 400


def build(call: Call, architecture: Architecture) -> Built:
    """Compile; an error of the compiler is an answer, a compiler that aborts is not ours to see."""
    began = time.monotonic()
    try:
        compiled = guarded(call.compile, "cpu")
    except Failure as failure:
        # Everything Triton raises here comes from compiling, whatever the exception is called.
        status = Status.COMPILE_ERROR if failure.status is Status.CRASHED else failure.status
        return Built(status=status, reason=_root(failure), compile_s=time.monotonic() - began)
    compile_s = time.monotonic() - began
    cubin: bytes = compiled.asm["cubin"]
    registers, spilled = _usage(cubin)
    shared = int(compiled.metadata.shared)
    built = Built(
        status=Status.OK,
        registers=registers,
        spill_bytes=spilled,
        shared_bytes=shared,
        warps=int(compiled.metadata.num_warps),
        code_bytes=_code_bytes(cubin),
        compile_s=compile_s,
    )
    if shared > architecture.shared_per_block:
        built.status = Status.OUT_OF_MEMORY
        built.reason = (
            f"it needs {shared / KIB:.1f} KiB of shared memory and {architecture.name} gives a "
            f"block {architecture.shared_per_block // KIB} KiB"
        )
    return built


def _root(failure: Failure) -> str:
    """The innermost error: of nested calls of kernels each level quotes its own source first."""
    error: BaseException = failure
    while error.__cause__ is not None:
        error = error.__cause__
    text = one_line(error, limit=10_000)
    # The message comes last, after the line of source and a caret.
    _, caret, message = text.rpartition("^ ")
    where = text[: text.find(":")] if caret else ""
    return f"{type(error).__name__}: {(message + f' ({where})' if caret else text)[:REASON_LENGTH]}"


def _usage(cubin: bytes) -> tuple[int | None, int | None]:
    """Registers a thread and bytes spilled a thread, as the cubinary tool that Triton carries says.

    None where this Triton carries none.
    """
    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    if not tool.is_file():
        return None, None
    with NamedTemporaryFile(suffix=".cubin") as file:
        file.write(cubin)
        file.flush()
        try:
            said = subprocess.run(
                [tool, "-res-usage", file.name],
                capture_output=True,
                text=True,
                timeout=_TOOL_LIMIT_S,
                check=True,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return None, None
    found = _USAGE.search(said)
    if found is None:
        return None, None
    registers, stack, _, local = map(int, found.groups())
    return registers, max(stack, local)


def _code_bytes(cubin: bytes) -> int:
    """Size of the machine code: the sections of the ELF file that hold instructions."""
    begin, size, count = (
        int.from_bytes(cubin[0x28:0x30], "little"),
        int.from_bytes(cubin[0x3A:0x3C], "little"),
        int.from_bytes(cubin[0x3C:0x3E], "little"),
    )
    executable, total = 0x4, 0
    for at in range(begin, begin + size * count, size):
        flags = int.from_bytes(cubin[at + 8 : at + 16], "little")
        if flags & executable:
            total += int.from_bytes(cubin[at + 0x20 : at + 0x28], "little")
    return total
