"""Everything that differs between the Tritons this library supports (3.0 to 3.9).

Kernels import ``triton`` and ``tl`` from here and ask no version questions of their own.
"""

from __future__ import annotations

import os
import re

import triton
import triton.language as tl
from triton.compiler.errors import CompilationError
from triton.runtime.errors import OutOfResources

__all__ = [
    "CPU_ALLOWED",
    "INTERPRETED",
    "KERNEL_ERRORS",
    "TRITON_VERSION",
    "check_version",
    "dot",
    "tl",
    "triton",
]

KERNEL_ERRORS: tuple[type[Exception], ...] = (RuntimeError, CompilationError, OutOfResources)
"""What compiling or launching a kernel raises; errors in the arguments are not among them."""

INTERPRETED: bool = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""True when kernels run in Triton's interpreter, on CPU tensors (fixed when triton is imported)."""

CPU_ALLOWED: bool = INTERPRETED or os.environ.get("NSA_KERNELS_RECORD_ONLY", "0") == "1"
"""True when launchers take CPU tensors: interpreted, or launches are recorded and not run."""

_INTERPRETED = tl.constexpr(INTERPRETED)


@triton.jit
def dot(a, b, acc, PRECISION: tl.constexpr):
    """``acc + a @ b`` in fp32; the interpreter's own ``tl.dot`` reads bfloat16 as integers."""
    if _INTERPRETED:
        acc = tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision=PRECISION)
    else:
        acc = tl.dot(a, b, acc, input_precision=PRECISION)
    return acc


def _parse(version: str) -> tuple[int, int, int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


TRITON_VERSION: tuple[int, int, int] = _parse(triton.__version__)


def check_version() -> None:
    """Refuse a Triton whose ``tl.dot`` has no ``input_precision``.

    Raises:
        RuntimeError: Triton is older than 3.0.
    """
    if TRITON_VERSION < (3, 0, 0):
        raise RuntimeError(
            f"nsa_kernels needs Triton 3.0 or newer and found {triton.__version__}; "
            "install torch 2.4 or newer, which brings it"
        )
