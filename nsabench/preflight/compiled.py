"""Reads from a cubin what its kernel needs."""

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
class Compiled:
    """kernel: its name in the cubin, or a part of the name.

    uses_wgmma: whether it has the instructions of sm_90 that multiply tiles in shared memory.
    """

    cubin: bytes
    kernel: str
    warps: int
    dynamic_shared_bytes: int
    uses_wgmma: bool = False

    def usage(self) -> tuple[int | None, int | None]:
        """Return registers and spilled bytes of a thread; None if this Triton has no cuobjdump."""
        listing = self._shown_by("cuobjdump", "-res-usage") or ""
        functions = [m for m in _FUNCTION.findall(listing) if self._is_ours(m[0])]
        if not functions:
            return None, None
        return (
            max(int(registers) for _, registers, _, _ in functions),
            max(max(int(stack), int(local)) for *_, stack, local in functions),
        )

    def unwritten(self) -> list[Unwritten]:
        """Return where it reads a register that nothing wrote, which means it was compiled wrong.

        Empty for a kernel without `wgmma`, and if this Triton has no nvdisasm.
        """
        return unwritten(self._shown_by("nvdisasm", "-c") or "") if self.uses_wgmma else []

    def _shown_by(self, program: str, *options: str) -> str | None:
        """Return what a tool of Triton prints about the cubin; None if it cannot be run."""
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
        """Return the dynamic and static shared memory of a block."""
        sections = dict(self._sections())
        own = max((s for n, s in sections.items() if self._is_of(n, ".nv.shared.")), default=0)
        # From sm_90, the section includes the driver's share, which the limits do not count.
        if ".nv.shared.reserved.0" in sections:
            own = max(own - RESERVED_SHARED, 0)
        return self.dynamic_shared_bytes + own

    def code_bytes(self) -> int:
        return sum(size for name, size in self._sections() if self._is_of(name, ".text."))

    def _is_of(self, section: str, kind: str) -> bool:
        return section.startswith(kind) and self._is_ours(section.removeprefix(kind))

    def _is_ours(self, function: str) -> bool:
        """C++ mangles names, so a part is enough."""
        return self.kernel in function

    def _sections(self) -> Iterator[tuple[str, int]]:
        """Yield name and size of each section of the ELF file (64 bit, little-endian)."""

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
