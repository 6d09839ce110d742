"""Gluon, where Triton's is the one that kernels here are written in.

Gluon is Triton's language of layouts, copies and warps. It is experimental and changes with each
Triton, so ``HAS_GLUON`` is true of those alone that these kernels were run with. Who has no Gluon
launches the same kernels as Triton compiles them: modules of kernels in Gluon are imported where
``launch.device.is_hopper`` holds, and nowhere else.
"""

from __future__ import annotations

from .compat import INTERPRETED, TRITON_VERSION

HAS_GLUON: bool = (3, 6, 0) <= TRITON_VERSION < (3, 7, 0) and not INTERPRETED
