"""A kernel that does not compile; for sm_120 its compiler never ends."""

import os
import time
from pathlib import Path

from nsabench import KernelVariant, implementation


def compile_ahead(capability):
    def assemble():
        if capability == 120:
            Path(os.environ["NSABENCH_TEST_BEGUN"]).touch()
            time.sleep(600)
        raise RuntimeError("no kernel")

    return [KernelVariant("none", "", 128, 0, "own", assemble)]


@implementation(op="selection_rows", name="for_ever", compile_ahead=compile_ahead)
def for_ever(q, k, v, *, sm_scale):
    raise AssertionError
