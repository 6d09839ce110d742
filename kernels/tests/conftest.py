"""Run the kernels in Triton's interpreter on machines without a CUDA device."""

import gc
import os
import sys
from pathlib import Path

import pytest
import torch

# The tests import modules beside this file.
sys.path.insert(0, str(Path(__file__).parent))

if not torch.cuda.is_available():
    # Must be set before triton is imported: the decorator decides at definition time.
    os.environ.setdefault("TRITON_INTERPRET", "1")
    from quick_interpreter import quicken

    quicken()
    # Interpreted tiles are tiny: several torch threads would only compete for the cores.
    torch.set_num_threads(1)


def pytest_collection_finish():
    """Freeze all imported objects, so that garbage collection does not look through them."""
    gc.collect()
    gc.freeze()


@pytest.fixture
def on_hopper():
    """Skip a test where the kernels in Gluon cannot run."""
    from nsa_kernels.launch.device import runs_gluon

    if not runs_gluon(torch.device("cuda", 0)):
        pytest.skip("needs a Hopper GPU and a Triton that runs the kernels in Gluon")
