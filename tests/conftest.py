"""Before any test module: a machine without a GPU runs Triton kernels through the interpreter."""

import os

import torch

if not torch.cuda.is_available():
    # Triton decides when it is first imported, which some test module does while it is collected.
    os.environ.setdefault("TRITON_INTERPRET", "1")
