"""Call kernels for rows, packed rows and ranges, and SDPA on the same rows, to profile each once.

Run this under ncu:

    ncu --clock-control none --profile-from-start off --nvtx --csv --page raw --metrics
    gpu__time_duration.sum,dram__bytes_read.sum,dram__throughput.avg.pct_of_peak_sustained_elapsed,
    lts__throughput.avg.pct_of_peak_sustained_elapsed,lts__t_sector_op_read_hit_rate.pct,
    smsp__cycles_active.avg,sm__cycles_elapsed.max,launch__waves_per_multiprocessor,
    launch__registers_per_thread python kernels/benchmarks/profile_bars.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import nsa_kernels
import torch

DTYPE = torch.bfloat16


def draw(*size: int) -> torch.Tensor:
    """Draw N(0, 1) on the device."""
    return torch.randn(size, device="cuda").to(DTYPE)


def calls() -> Iterator[tuple[str, Callable[[], object]]]:
    """Yield each call with a label of its shape."""
    shapes = ((256, 8, 64, 512), (256, 4, 64, 64), (1024, 8, 128, 64))
    few = ((8, 8, 128, 1024), (8, 8, 128, 4096), (64, 8, 128, 16384))
    for n, h, d, length in (*shapes, *few):
        q, k, v = draw(n, h, d), draw(n, length, d), draw(n, length, d)
        yield f"rows {n},{h},{d},{length}", partial(nsa_kernels.selection_rows, q, k, v)
        sdpa = torch.nn.functional.scaled_dot_product_attention
        yield (
            f"sdpa {n},{h},{d},{length}",
            partial(sdpa, q[:, :, None], k[:, None], v[:, None], enable_gqa=True),
        )
    for name, lengths in (
        ("spread", torch.arange(1024) + 1),
        ("mixed", torch.tensor([1024, 8, 1024, 64, 1024, 0, 512, 256]).repeat(128)),
    ):
        cu = torch.nn.functional.pad(lengths[torch.randperm(1024)].cumsum(0), (1, 0))
        total = int(cu[-1])
        packed = (draw(1024, 8, 128), draw(total, 128), draw(total, 128), cu.int().cuda())
        yield f"varlen {name}", partial(nsa_kernels.selection_varlen, *packed)
    for b, s, g, h, d, s_kv in (
        (256, 1, 2, 8, 128, 8192),
        (64, 1, 2, 8, 128, 8192),
        (1, 1024, 4, 4, 64, 4096),
    ):
        n, size = 8, 128
        start = torch.rand(b, s, g, s_kv // size, device="cuda").argsort(-1)[..., :n] * size
        spans = torch.stack([start, start + size], -1).int()
        at = (draw(b, s, g, h, d), draw(b, g, s_kv, d), draw(b, g, s_kv, d), spans)
        yield f"ranges {b},{s},{g},{h},{d},{s_kv}", partial(nsa_kernels.selection_ranges, *at)


def main() -> None:
    """Call everything to compile it, then call everything once more while ncu profiles."""
    torch.manual_seed(0)
    listed = list(calls())
    for _, call in listed:
        call()
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    for label, call in listed:
        with torch.cuda.nvtx.range(label):
            call()
            torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    main()
