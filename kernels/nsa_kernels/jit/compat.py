"""Everything that differs between the Tritons this library supports (3.0 to 3.9).

Kernels import ``triton`` and ``tl`` from here and ask no version questions of their own.
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
    # The functions of Triton 3.4 have a signature that its own compiler cannot call.
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
"""True when launchers take CPU tensors: interpreted, or launches are recorded and not run."""

_TAKES_ANY_ALIGNMENT = "do_not_specialize_on_alignment" in inspect.signature(triton.jit).parameters


def any_alignment(*pointers: str) -> dict[str, tuple[str, ...]]:
    """Return options with which ``triton.jit`` compiles once for pointers of any alignment.

    They are empty if Triton has no such option. Use them for what is read one number at a time,
    where alignment gains nothing.
    """
    return {"do_not_specialize_on_alignment": pointers} if _TAKES_ANY_ALIGNMENT else {}


# Two definitions and no condition on a global: Triton compares every global that a kernel reads
# with what it was, in every launch, which takes 0.7 us each.
if INTERPRETED:

    @triton.jit
    def dot(a, b, acc):
        """``acc + a @ b`` in fp32; the interpreter's own ``tl.dot`` reads bfloat16 as integers."""
        return tl.dot(a.to(tl.float32), b.to(tl.float32), acc, input_precision="ieee")

    @triton.jit
    def narrow(x, dtype: tl.constexpr):
        """fp32 ``x`` rounded to ``dtype``; the interpreter's own cast to bfloat16 cuts bits off."""
        if dtype == tl.bfloat16:
            bits = x.to(tl.int32, bitcast=True)
            bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & -65536
            x = bits.to(tl.float32, bitcast=True)
        return x.to(dtype)

else:

    @triton.jit
    def dot(a, b, acc):
        """``acc + a @ b`` in fp32."""
        return tl.dot(a, b, acc, input_precision="ieee")

    @triton.jit
    def narrow(x, dtype: tl.constexpr):
        """fp32 ``x`` rounded to ``dtype``."""
        return x.to(dtype)


# Programmatic dependent launch (sm_90 and later): programs of the next launch may start once all
# programs of this one have started. They wait for its end and its writes by an instruction.
if HAS_PDL:

    @triton.jit
    def start_next_launch(PDL: tl.constexpr):
        """Let the next launch of the stream start its programs, if it was launched so."""
        if PDL:
            gdc_launch_dependents()

    @triton.jit
    def wait_for_last_launch(PDL: tl.constexpr):
        """Wait until the launch before has ended and its writes are visible."""
        if PDL:
            gdc_wait()

else:

    @triton.jit
    def start_next_launch(PDL: tl.constexpr):
        """No dependent launch in this Triton."""
        tl.static_assert(not PDL)

    @triton.jit
    def wait_for_last_launch(PDL: tl.constexpr):
        """No dependent launch in this Triton: the stream's order is enough."""
        tl.static_assert(not PDL)


def _parse(version: str) -> tuple[int, int, int]:
    numbers = [int(part) for part in re.findall(r"\d+", version)[:3]]
    major, minor, patch = [*numbers, 0, 0, 0][:3]
    return major, minor, patch


TRITON_VERSION: tuple[int, int, int] = _parse(triton.__version__)

HAS_GLUON: bool = (3, 6, 0) <= TRITON_VERSION < (3, 7, 0) and not INTERPRETED
"""Whether Triton's Gluon is the one that kernels here are written in: a language of layouts, copies
and warps, which is experimental and changes with each Triton. True of those alone that these
kernels were run with; elsewhere Triton's take their place."""

PIPELINES_GATHERS: bool = TRITON_VERSION >= (3, 2, 0)
"""Whether loops may have stages whose loads take their addresses from loads of the same turn; the
compiler of 3.1 ends with "operation scheduled before its operands"."""


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
