"""Compiles a launch to a cubin and reads from it what the kernel needs."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass

from triton.compiler.errors import CompilationError

from nsabench.failure import Failure
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import KIB, Architecture
from nsabench.preflight.compiled import Compiled
from nsabench.preflight.messages import Built
from nsabench.preflight.record import Call
from nsabench.registry import Implementation, KernelVariant
from nsabench.worker.guard import guarded, one_line

REASON_LENGTH = 400
THREADS_PER_WARP = 32


@dataclass(frozen=True)
class AheadCall:
    """A kernel that an implementation compiles itself, with the interface of a recorded `Call`."""

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


def variants(item: Implementation, architecture: Architecture) -> list[AheadCall]:
    """Return what is launched on the architecture. Raises `Failure` if the call fails."""
    compile_ahead = item.compile_ahead
    assert compile_ahead is not None
    return guarded(
        lambda: [AheadCall(v, item.source) for v in compile_ahead(architecture.capability)], "cpu"
    )


def build(call: Call | AheadCall, architecture: Architecture) -> Built:
    """Compile a launch. An error of the compiler is an answer; its abort ends this process."""
    began = time.monotonic()
    try:
        compiled = guarded(call.compile, "cpu")
    except Failure as failure:
        # Every exception here comes from compiling.
        status = Status.COMPILE_ERROR if failure.status is Status.CRASHED else failure.status
        return Built(status=status, reason=_root(failure), compile_s=time.monotonic() - began)
    compile_s = time.monotonic() - began
    registers, spill_bytes = compiled.usage()
    shared = compiled.shared_bytes()
    built = Built(
        status=Status.OK,
        registers=registers,
        spill_bytes=spill_bytes,
        shared_bytes=shared,
        warps=compiled.warps,
        code_bytes=compiled.code_bytes(),
        compile_s=compile_s,
    )
    if wrong := compiled.unwritten():
        built.status = Status.COMPILE_ERROR
        built.reason = (
            f"its machine code is wrong: {wrong[0]}, which nothing wrote. The compiler made it so; "
            "it must not run"
        )
    elif shared > architecture.shared_per_block:
        built.status = Status.OUT_OF_MEMORY
        built.reason = (
            f"it needs {shared / KIB:.1f} KiB of shared memory and {architecture.name} gives a "
            f"block {architecture.shared_per_block // KIB} KiB"
        )
    return built


def _root(failure: Failure) -> str:
    """Return the innermost error. Each level of nested kernels quotes its own source first."""
    error: BaseException = failure
    while error.__cause__ is not None:
        error = error.__cause__
    text = one_line(error, limit=10_000)
    if not isinstance(error, CompilationError):
        return f"{type(error).__name__}: {text[:REASON_LENGTH]}"
    # The message comes last, after the line of source and a caret.
    _, caret, message = text.rpartition("^ ")
    where = text[: text.find(":")] if caret else ""
    return f"{type(error).__name__}: {(message + f' ({where})' if caret else text)[:REASON_LENGTH]}"
