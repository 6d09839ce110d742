"""Run the kernels in Triton's interpreter when there is no CUDA device."""

from __future__ import annotations

import gc
import os
import sys
from pathlib import Path

import torch

# The tests import the oracle beside this file.
sys.path.insert(0, str(Path(__file__).parent))

if not torch.cuda.is_available():
    # Must be set before triton is imported: the decorator decides at definition time.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    os.environ["NSA_KERNELS_SHORT_CUTS"] = "1"  # of the interpreter (nsa_kernels.jit.operands)
    # Interpreted tiles are tiny; several torch threads only fight over the cores.
    torch.set_num_threads(1)

    from triton import language as tl
    from triton.runtime import interpreter

    _numpy_dtype = interpreter._get_np_dtype
    _known = {}

    def _remembered(dtype):
        """An eighth of the interpreter's time went into the same table, made anew an operand."""
        element = dtype.element_ty if isinstance(dtype, tl.block_type) else dtype
        if isinstance(element, tl.pointer_type):
            return _numpy_dtype(dtype)
        if element.name not in _known:
            _known[element.name] = _numpy_dtype(element)
        return _known[element.name]

    interpreter._get_np_dtype = _remembered


def pytest_collection_finish() -> None:
    """What is imported by now stays: collecting garbage need not look through it."""
    gc.collect()
    gc.freeze()
