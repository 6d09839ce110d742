"""``python -m nsa_kernels.compile`` fills Triton's cache with the kernels of a model."""

import os
import subprocess
import sys

import pytest
import torch
from nsa_kernels import compile as command

PRETENDED = """
import sys
from nsabench.preflight import pretend
from nsabench.preflight.targets import ARCHITECTURES
gpu = ARCHITECTURES["sm_80"]
pretend.install_driver(gpu)
from nsa_kernels import compile
with pretend.cuda(gpu), pretend.operators_run("meta"), pretend.TensorsOnCuda("meta"):
    compile.main(sys.argv[1:])
"""
SMALL = "--heads 2/1 --head-dim 16 --block 16 --block-size 16 --n-selected 3 --lengths 17 --jobs 1"


def test_a_prefill_a_step_and_a_decode_step_are_compiled(tmp_path):
    """They are compiled for a GPU that is not here: launches are recorded, and none runs."""
    environment = {x: value for x, value in os.environ.items() if x != "TRITON_INTERPRET"}
    environment |= {"NSA_KERNELS_RECORD_ONLY": "1", "TRITON_CACHE_DIR": str(tmp_path)}
    arguments = [sys.executable, "-c", PRETENDED, *SMALL.split()]
    done = subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr
    made = {file.stem for file in tmp_path.glob("*/*.cubin")}
    assert {"band_forward_kernel", "query_major_kernel", "decode_merge_kernel"} <= made
    assert {"band_dq_kernel", "backward_kernel", "compress_backward_kernel"} <= made


def test_heads_that_are_not_two_numbers_are_a_usage_error():
    with pytest.raises(SystemExit) as error:
        command.main(["--heads", "64"])
    assert error.value.code == 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_there_is_nothing_to_compile_for():
    with pytest.raises(SystemExit, match="CUDA"):
        command.main([])
