"""Kernels that an implementation compiles itself: the same questions as to a recorded launch."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from nsabench.execution.worker.guard import guarded
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.compiled import Compiled
from nsabench.registry import KernelVariant

THREADS_PER_WARP = 32


@dataclass(frozen=True)
class AheadCall:
    """A variant, asked for what `record.Call` is asked."""

    variant: KernelVariant
    source: str

    @property
    def kernel(self) -> str:
        return self.variant.kernel

    @property
    def compiler(self) -> str:
        return self.variant.compiler

    def signature(self) -> str:
        return ""

    def constants(self) -> str:
        return self.variant.constants

    def options(self) -> str:
        return f"threads={self.variant.threads} dynamic_shared={self.variant.shared_bytes}"

    def key(self) -> str:
        text = "|".join([self.source, self.kernel, self.constants(), self.options()])
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def compile(self) -> Compiled:
        """Raises what the implementation's compiler raises."""
        cubin = self.variant.compile()
        if not isinstance(cubin, bytes) or not cubin.startswith(b"\x7fELF"):
            raise TypeError("its compile() returned no cubin (bytes of an ELF file)")
        warps = -(-self.variant.threads // THREADS_PER_WARP)
        return Compiled(cubin, self.kernel, warps, self.variant.shared_bytes)


def variants(
    compile_ahead: Callable[[int], Iterable[KernelVariant]],
    source: str,
    architecture: Architecture,
) -> list[AheadCall]:
    """What is launched on the architecture. Raises `Failure` when the implementation cannot say."""
    return guarded(
        lambda: [AheadCall(v, source) for v in compile_ahead(architecture.capability)], "cpu"
    )
