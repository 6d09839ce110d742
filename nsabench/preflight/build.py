"""Compiles a launch to a cubin and reads the resources of the kernel."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton
from triton.compiler.errors import CompilationError

from nsabench.failure import Failure
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import KIB, RESERVED_SHARED, Architecture
from nsabench.preflight.launch import CompiledLaunch
from nsabench.preflight.record import Call
from nsabench.worker.guard import guarded, one_line

REASON_LENGTH = 400
_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
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
    cubin = Cubin(compiled.cubin, compiled.kernel)
    registers, spill_bytes = cubin.read_usage()
    shared = compiled.dynamic_shared_bytes + cubin.static_shared_bytes()
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
            "registers": registers,
            "spill_bytes": spill_bytes,
            "shared_bytes": shared,
            "shared_limit_bytes": architecture.shared_per_block,
            "warps": compiled.warps,
            "code_bytes": cubin.code_bytes(),
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
class Cubin:
    """A cubin. kernel: its name in the cubin, or a part of it, since C++ mangles names."""

    content: bytes
    kernel: str

    def read_usage(self) -> tuple[int | None, int | None]:
        """Return registers and spilled bytes a thread; None without Triton's cuobjdump."""
        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        with NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.content)
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
                return None, None
        functions = [m for m in _FUNCTION.findall(done.stdout) if self.kernel in m[0]]
        if not functions:
            return None, None
        return (
            max(int(registers) for _, registers, _, _ in functions),
            max(max(int(stack), int(local)) for *_, stack, local in functions),
        )

    def static_shared_bytes(self) -> int:
        sizes = {name: size for name, size in self._sections() if name.startswith(".nv.shared.")}
        own = max((size for name, size in sizes.items() if self.kernel in name), default=0)
        # From sm_90 the section includes the driver's share, which limits do not count.
        return max(own - RESERVED_SHARED, 0) if ".nv.shared.reserved.0" in sizes else own

    def code_bytes(self) -> int:
        sections = self._sections()
        return sum(size for n, size in sections if n.startswith(".text.") and self.kernel in n)

    def _sections(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of each section of the ELF file (64 bit, little-endian)."""

        def number(offset: int, length: int) -> int:
            return int.from_bytes(self.content[offset : offset + length], "little")

        begin = number(0x28, 8)
        size, count, names = (number(offset, 2) for offset in (0x3A, 0x3C, 0x3E))
        strings = number(begin + names * size + 0x18, 8)
        for offset in range(begin, begin + count * size, size):
            start = strings + number(offset, 4)
            name = self.content[start : self.content.index(b"\0", start)]
            yield name.decode("utf-8", "replace"), number(offset + 0x20, 8)
