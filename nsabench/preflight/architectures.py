"""The GPU architectures that kernels are compiled for."""

from __future__ import annotations

from dataclasses import dataclass

from nsabench.errors import UsageError
from nsabench.machine import datasheet
from nsabench.machine.datasheet import Sheet
from nsabench.machine.environment.pairs import numbers

KIB = 1024
REGISTERS = 65536  # a multiprocessor's, the same on all of them
RESERVED_SHARED = KIB  # the driver's share of every block's shared memory


@dataclass(frozen=True)
class Architecture:
    """The limits of an architecture (CUDA programming guide), and a GPU that has it."""

    capability: int
    shared_per_block: int
    shared_per_sm: int
    warps_per_sm: int
    gpu: str

    @property
    def name(self) -> str:
        return f"sm_{self.capability}"

    @property
    def sheet(self) -> Sheet:
        return datasheet.find(self.gpu)


ARCHITECTURES = {
    a.name: a
    for a in (
        Architecture(80, 163 * KIB, 164 * KIB, 64, "NVIDIA A100-SXM4-80GB"),
        Architecture(86, 99 * KIB, 100 * KIB, 48, "NVIDIA GeForce RTX 3090"),
        Architecture(89, 99 * KIB, 100 * KIB, 48, "NVIDIA GeForce RTX 4090"),
        Architecture(90, 227 * KIB, 228 * KIB, 64, "NVIDIA H200"),
        Architecture(100, 227 * KIB, 228 * KIB, 64, "NVIDIA B200"),
        Architecture(120, 99 * KIB, 100 * KIB, 48, "NVIDIA GeForce RTX 5090"),
    )
}

# The oldest Triton that compiles for these architectures.
OLDEST_TRITON = {"sm_100": (3, 3), "sm_120": (3, 3)}
OLDEST_SUPPORTED = (3, 0)


def parse(given: str) -> list[Architecture]:
    """Return the architectures of a list. Raises `UsageError` for an unknown one."""
    names = [name.strip() for name in given.split(",") if name.strip()]
    for name in names:
        if name not in ARCHITECTURES:
            raise UsageError(
                f"{name!r} is not an architecture that preflight knows",
                f"give --arch some of {','.join(ARCHITECTURES)}.",
            )
    return [ARCHITECTURES[name] for name in dict.fromkeys(names)] or list(ARCHITECTURES.values())


def is_supported(triton: str, architecture: str) -> bool:
    """Return whether this Triton supports the architecture."""
    return numbers(triton)[:2] >= OLDEST_TRITON.get(architecture, OLDEST_SUPPORTED)
