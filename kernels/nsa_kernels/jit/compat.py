"""What kernels need to run with each of the supported versions of Triton (3.0 to 3.9).

Kernels in Triton import ``triton`` and ``tl`` from here, and do not look at the version themselves.
"""

from __future__ import annotations

import inspect
import os
import re

import triton
import triton.language as tl

try:
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:  # Triton < 3.4
    HAS_PDL = False
else:
    # Triton 3.4 has these functions, but its compiler cannot call them.
    HAS_PDL = "_semantic" in inspect.signature(gdc_wait).parameters

__all__ = [
    "CPU_ALLOWED",
    "HAS_GLUON",
    "HAS_PDL",
    "INTERPRETED",
    "PIPELINES_GATHERS",
    "TRITON_VERSION",
    "any_alignment",
    "check_version",
    "dot",
    "narrow",
    "start_next_launch",
    "tl",
    "triton",
    "wait_for_last_launch",
]

INTERPRETED: bool = os.environ.get("TRITON_INTERPRET", "0") == "1"
"""True when kernels run in Triton's interpreter, on CPU tensors (fixed when triton is imported)."""

CPU_ALLOWED: bool = INTERPRETED or os.environ.get("NSA_KERNELS_RECORD_ONLY", "0") == "1"
"""True if CPU tensors are allowed: kernels are interpreted, or only recorded and not run."""

_TAKES_ANY_ALIGNMENT = "do_not_specialize_on_alignment" in inspect.signature(triton.jit).parameters


def any_alignment(*pointers: str) -> dict[str, tuple[str, ...]]:
    """Return options with which ``triton.jit`` compiles once for pointers of any alignment.

    The options are empty if this version of Triton has none. Use them for pointers whose elements
    are read one by one, where alignment does not help.
    """
    return {"do_not_specialize_on_alignment": pointers} if _TAKES_ANY_ALIGNMENT else {}


# These functions are defined twice so that they do not read INTERPRETED. In every launch, Triton
# compares each global that a kernel reads with its earlier value, which takes host time.
if INTERPRETED:

    @triton.jit
    def dot(a, b, acc):
        """Return ``acc + a @ b`` in fp32. The interpreter's ``tl.dot`` reads bfloat16 as
        integers."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")

    @triton.jit
    def narrow(x, dtype: tl.constexpr):
        """Return fp32 ``x`` rounded to ``dtype``. The interpreter's cast to bfloat16 truncates."""
        if dtype == tl.bfloat16:
            bits = x.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
            x = bits.to(tl.float32, bitcast=True)
        return x.to(dtype)

else:

    @triton.jit
    def dot(a, b, acc):
        return tl.dot(a, b, acc, input_precision="ieee")

    @triton.jit
    def narrow(x, dtype: tl.constexpr):
        return x.to(dtype)


# Programmatic dependent launch (PDL, sm_90 and later): programs of the next launch may start once
# all programs of this launch have ended or called ``start_next_launch``. The next launch calls
# ``wait_for_last_launch`` before it reads what this launch wrote.
if HAS_PDL:

    @triton.jit
    def start_next_launch(PDL: tl.constexpr):
        """Let the next launch of the stream start its programs, if it is a dependent launch."""
        if PDL:
            gdc_launch_dependents()

    @triton.jit
    def wait_for_last_launch(PDL: tl.constexpr):
        """Wait until the previous launch has ended and its writes are visible."""
        if PDL:
            gdc_wait()

else:

    @triton.jit
    def start_next_launch(PDL: tl.constexpr):
        tl.static_assert(not PDL)

    @triton.jit
    def wait_for_last_launch(PDL: tl.constexpr):
        tl.static_assert(not PDL)


def _parse(version: str) -> tuple[int, int, int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


TRITON_VERSION: tuple[int, int, int] = _parse(triton.__version__)

HAS_GLUON: bool = (3, 6, 0) <= TRITON_VERSION < (3, 7, 0) and not INTERPRETED
"""Whether the kernels in Gluon can run: not interpreted, and with this version of Triton. Gluon is
Triton's lower-level language, with explicit layouts, copies and warps. It changes with each
version, so only tested versions count. With others, the kernels in Triton run instead."""

PIPELINES_GATHERS: bool = TRITON_VERSION >= (3, 2, 0)
"""Whether a pipelined loop may load addresses, and load from them in the same iteration. Triton 3.1
cannot compile such loops: "operation scheduled before its operands"."""


def check_version() -> None:
    """Raise RuntimeError before Triton 3.0, whose ``tl.dot`` has no ``input_precision``."""
    if TRITON_VERSION < (3, 0, 0):
        raise RuntimeError(
            f"nsa_kernels needs Triton 3.0 or newer and found {triton.__version__}; "
            "install torch 2.4 or newer, which brings it"
        )
