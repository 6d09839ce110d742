"""A cubin, and what it says of the kernel in it."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import NamedTemporaryFile

import triton

from nsabench.preflight.architectures import RESERVED_SHARED
from nsabench.preflight.machine_code import Unwritten, unwritten

_FUNCTION = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:(\d+) SHARED:\d+ LOCAL:(\d+)")
_TOOL_LIMIT_S = 60


@dataclass(frozen=True)
class Usage:
    """Registers and spilled bytes of a thread."""

    registers: int
    spill_bytes: int


@dataclass(frozen=True)
class Compiled:
    """What a compiler made of a launch. `kernel` is its name, or a part of it, in the cubin.
    uses_wgmma: whether it has the instructions of sm_90 that multiply tiles in shared memory."""

    cubin: bytes
    kernel: str
    warps: int
    dynamic_shared_bytes: int
    uses_wgmma: bool = False

    def usage(self) -> Usage | None:
        """As the tool that Triton carries says; None where this Triton carries none."""
        listing = self._shown_by("cuobjdump", "-res-usage")
        if listing is None:
            return None
        functions = [m for m in _FUNCTION.findall(listing) if self._is_ours(m[0])]
        if not functions:
            return None
        return Usage(
            registers=max(int(registers) for _, registers, _, _ in functions),
            spill_bytes=max(max(int(stack), int(local)) for *_, stack, local in functions),
        )

    def unwritten(self) -> list[Unwritten]:
        """Where it reads a register that nothing wrote: it was compiled wrong. Empty where this
        Triton carries no disassembler, too, and of kernels without `wgmma`."""
        return unwritten(self._shown_by("nvdisasm", "-c") or "") if self.uses_wgmma else []

    def _shown_by(self, program: str, *options: str) -> str | None:
        """What a tool that Triton carries prints of it; None where it carries none."""
        tool = Path(triton.__file__).parent / "backends/nvidia/bin" / program
        if not tool.is_file():
            return None
        with NamedTemporaryFile(suffix=".cubin") as file:
            file.write(self.cubin)
            file.flush()
            try:
                return subprocess.run(
                    [tool, *options, file.name],
                    capture_output=True,
                    text=True,
                    timeout=_TOOL_LIMIT_S,
                    check=True,
                ).stdout
            except (OSError, subprocess.SubprocessError):
                return None

    def shared_bytes(self) -> int:
        """Of a block: what a launch asks for, and what the kernel has of its own."""
        sections = dict(self._sections())
        own = max((s for n, s in sections.items() if self._is_of(n, ".nv.shared.")), default=0)
        # From sm_90 on a kernel's section holds the driver's share too, which the limits leave out.
        if ".nv.shared.reserved.0" in sections:
            own = max(own - RESERVED_SHARED, 0)
        return self.dynamic_shared_bytes + own

    def code_bytes(self) -> int:
        """Size of the machine code."""
        return sum(size for name, size in self._sections() if self._is_of(name, ".text."))

    def _is_of(self, section: str, kind: str) -> bool:
        return section.startswith(kind) and self._is_ours(section.removeprefix(kind))

    def _is_ours(self, function: str) -> bool:
        """C++ mangles names, so a part is enough."""
        return self.kernel in function

    def _sections(self) -> Iterator[tuple[str, int]]:
        """Name and size of each section of the ELF file (64 bit, little-endian, as cubins are)."""

        def number(offset: int, length: int) -> int:
            return int.from_bytes(self.cubin[offset : offset + length], "little")

        begin, size, count, names = (
            number(0x28, 8),
            *(number(offset, 2) for offset in (0x3A, 0x3C, 0x3E)),
        )
        strings = number(begin + names * size + 0x18, 8)
        for offset in range(begin, begin + count * size, size):
            start = strings + number(offset, 4)
            name = self.cubin[start : self.cubin.index(b"\0", start)]
            yield name.decode("utf-8", "replace"), number(offset + 0x20, 8)
