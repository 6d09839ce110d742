"""The public name of ``nsa_kernels.selection.cuda``: kernels for rows and ranges in CUDA C++."""

from __future__ import annotations

from .selection.cuda import *  # noqa: F403
from .selection.cuda import __all__, nvrtc

__all__ = [*__all__, "nvrtc"]
