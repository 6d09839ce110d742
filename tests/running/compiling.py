"""Implementations for `--kernels` that pretend to compile, or do not get so far."""

import os
import time
from pathlib import Path

from torch.nn.functional import scaled_dot_product_attention

from nsabench import implementation

COMPILES_S = 0.5


def registered(call):
    @implementation(op="selection_rows", name=call.__name__, devices=("cuda", "cpu"))
    def run(q, k, v, *, sm_scale):
        length = k.shape[1]
        with (Path(os.environ["TMPDIR"]) / "calls").open("a") as calls:
            calls.write(f"{call.__name__} {length} {os.getpid()}\n")
        call(length)
        out = scaled_dot_product_attention(
            q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), scale=sm_scale, enable_gqa=True
        )
        return out.squeeze(2)

    return call


@registered
def compiles(length):
    """Take time and write a file into the cache, once for each length."""
    kernel = Path(os.environ["TRITON_CACHE_DIR"]) / f"of_{length}"
    if not kernel.exists():
        time.sleep(COMPILES_S)
        kernel.touch()


@registered
def waits_for_the_other(length):
    """Wait until another process calls this on a second length."""
    own = Path(os.environ["TMPDIR"])
    (own / f"begun_{length}").touch()
    while len(list(own.glob("begun_*"))) < 2:
        time.sleep(0.01)


@registered
def ends_its_process(length):
    os._exit(7)


@registered
def never_ends(length):
    time.sleep(600)
