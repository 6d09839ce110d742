"""Compiles a recorded launch to a cubin and reads from it what it takes to run."""

from __future__ import annotations

import time
from typing import Protocol

from triton.compiler.errors import CompilationError

from nsabench.execution.worker.guard import guarded, one_line
from nsabench.failure import Failure
from nsabench.model.vocabulary import Status
from nsabench.preflight.architectures import KIB, Architecture
from nsabench.preflight.compiled import Compiled
from nsabench.preflight.messages import Built

REASON_LENGTH = 400


class Call(Protocol):
    """A launch that can be compiled, whoever compiles it."""

    @property
    def kernel(self) -> str: ...

    @property
    def compiler(self) -> str: ...

    def signature(self) -> str: ...

    def constants(self) -> str: ...

    def options(self) -> str: ...

    def key(self) -> str: ...

    def compile(self) -> Compiled: ...


def build(call: Call, architecture: Architecture) -> Built:
    """Compile; an error of the compiler is an answer, a compiler that aborts is not ours to see."""
    began = time.monotonic()
    try:
        compiled = guarded(call.compile, "cpu")
    except Failure as failure:
        # Everything that is raised here comes from compiling, whatever the exception is called.
        status = Status.COMPILE_ERROR if failure.status is Status.CRASHED else failure.status
        return Built(status=status, reason=_root(failure), compile_s=time.monotonic() - began)
    compile_s = time.monotonic() - began
    usage = compiled.usage()
    shared = compiled.shared_bytes()
    built = Built(
        status=Status.OK,
        registers=usage.registers if usage else None,
        spill_bytes=usage.spill_bytes if usage else None,
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
    """The innermost error: of nested calls of kernels each level quotes its own source first."""
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
