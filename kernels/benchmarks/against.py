"""Compare the kernels of this checkout with those of another one, in turn in one process.

python kernels/benchmarks/against.py OTHER, where OTHER is the folder ``nsa_kernels`` of another
checkout (``git worktree add ../older COMMIT``). For each call it prints:

- whether the results are equal;
- the ratio of device times, other over this, with a 95 % interval (L2 flushed, launch gap hidden);
- how long a call holds the CPU without waiting for the device, and the ratio, other over this.

Times are in microseconds. The exit code is 1 if the whole interval of a device ratio is below
1/1.02, or if results differ.
"""

from __future__ import annotations

import argparse
import importlib
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch

OTHER = "nsa_kernels_other"
ROUNDS, HOST_CALLS = 80, 200
LONGER = 1.02
SPIN_CYCLES = 2_000_000  # about 1 ms, during which the host queues a sample
BF16, FP16 = torch.bfloat16, torch.float16

Call = Callable[[], Any]
Make = Callable[[ModuleType], Call]


def load_other(folder: Path) -> ModuleType:
    """Import the other package, and its operators, under a name of its own."""
    root = Path(tempfile.mkdtemp())
    shutil.copytree(folder, root / OTHER, ignore=shutil.ignore_patterns("__pycache__"))
    for file in (root / OTHER).rglob("*.py"):
        text = file.read_text()
        file.write_text(
            text.replace('"nsa_kernels::', f'"{OTHER}::')
            .replace("torch.ops.nsa_kernels", f"torch.ops.{OTHER}")
            .replace("from nsa_kernels", f"from {OTHER}")
        )
    sys.path.insert(0, str(root))
    return importlib.import_module(OTHER)


def draw(*size: int, dtype: torch.dtype = BF16) -> torch.Tensor:
    """Draw N(0, 1) on the device."""
    return torch.randn(size, device="cuda").to(dtype)


def chosen_blocks(tokens: int, heads: int, count: int, size: int = 64) -> torch.Tensor:
    """Draw int32 [1, T, H, count]: the first block, the query's own, and random ones up to it."""
    own = torch.arange(tokens, device="cuda") // size
    share = torch.rand(tokens, heads, count, device="cuda")
    blocks = (share * (own + 1).view(-1, 1, 1)).int()
    blocks[:, :, 0] = 0
    blocks[:, :, 1] = own.view(-1, 1).int()
    return blocks.unsqueeze(0).contiguous()


def rows(n: int, h: int, d: int, length: int) -> Make:
    q, k = draw(n, h, d, dtype=FP16), draw(n, length, d, dtype=FP16)
    v = draw(n, length, d, dtype=FP16)
    return lambda kernels: partial(kernels.selection_rows, q, k, v)


def varlen(n: int, h: int, d: int, longest: int) -> Make:
    lengths = torch.randint(1, longest + 1, (n,))
    cu = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]).to("cuda", torch.int32)
    total = int(lengths.sum())
    q, k = draw(n, h, d, dtype=FP16), draw(total, d, dtype=FP16)
    v = draw(total, d, dtype=FP16)
    return lambda kernels: partial(kernels.selection_varlen, q, k, v, cu, max_seqlen=longest)


def ranges(b: int, s: int, g: int, h: int, d: int, s_kv: int, spans: int, grad: bool) -> Make:
    q, k, v = draw(b, s, g, h, d), draw(b, g, s_kv, d), draw(b, g, s_kv, d)
    start = torch.randint(0, s_kv // 64, (b, s, g, spans, 1), device="cuda") * 64
    spans_ = torch.cat([start, start + 64], -1).int()
    if not grad:
        return lambda kernels: partial(kernels.selection_ranges, q, k, v, spans_)
    return lambda kernels: backward(
        lambda *leaves: kernels.selection_ranges(*leaves, spans_)[0], q, k, v
    )


def blocks(tokens: int, hq: int, h: int, d: int, grad: bool) -> Make:
    q, k, v = draw(1, tokens, hq, d), draw(1, tokens, h, d), draw(1, tokens, h, d)
    indices = chosen_blocks(tokens, h, 16)
    if not grad:
        return lambda kernels: partial(kernels.block_selection_attention, q, k, v, indices)
    return lambda kernels: backward(
        lambda *leaves: kernels.block_selection_attention(*leaves, indices), q, k, v
    )


def sliding(tokens: int, hq: int, h: int, d: int) -> Make:
    q, k, v = draw(1, tokens, hq, d), draw(1, tokens, h, d), draw(1, tokens, h, d)
    return lambda kernels: partial(kernels.sliding_window, q, k, v, window=512)


def compressed(tokens: int, hq: int, h: int, d: int) -> Make:
    keys = (tokens - 32) // 16 + 1
    q, k, v = draw(1, tokens, hq, d), draw(1, keys, h, d), draw(1, keys, h, d)
    return lambda kernels: partial(kernels.compressed_attention_with_scores, q, k, v)


def top_n(tokens: int, heads: int) -> Make:
    scores = torch.rand(1, tokens, heads, tokens // 64, device="cuda")
    return lambda kernels: partial(kernels.select_blocks, scores, 16)


def decode(b: int, s: int) -> Make:
    keys = (s - 32) // 16 + 1
    q, gates = draw(b, 64, 128), torch.rand(b, 64, 3, device="cuda").to(BF16)
    k, v = draw(b, 4, s, 128), draw(b, 4, s, 128)
    k_cmp, v_cmp = draw(b, 4, keys, 128), draw(b, 4, keys, 128)
    return lambda kernels: partial(kernels.decode_step, q, k, v, k_cmp, v_cmp, gates)


def backward(forward: Callable[..., torch.Tensor], *inputs: torch.Tensor) -> Call:
    """Call the forward, and return a function that computes the gradients of all inputs."""
    leaves = [t.detach().requires_grad_() for t in inputs]
    out = forward(*leaves)
    grad_out = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, leaves, grad_out, retain_graph=True)


CASES: dict[str, Callable[[], Make]] = {
    "rows 1024x8x128, L 1024": partial(rows, 1024, 8, 128, 1024),
    "rows 256x4x64, L 256": partial(rows, 256, 4, 64, 256),
    "packed rows 1024x8x128, to 1024": partial(varlen, 1024, 8, 128, 1024),
    "ranges, decode, B 64": partial(ranges, 64, 1, 4, 16, 128, 16384, 16, False),
    "ranges, backward, S 4096": partial(ranges, 1, 4096, 2, 8, 64, 4096, 8, True),
    "blocks 8192, 64/4": partial(blocks, 8192, 64, 4, 128, False),
    "blocks 2048, 32/8": partial(blocks, 2048, 32, 8, 128, False),
    "blocks backward 8192, 32/8": partial(blocks, 8192, 32, 8, 128, True),
    "window 8192, 32/8": partial(sliding, 8192, 32, 8, 128),
    "compressed with scores 8192, 32/8": partial(compressed, 8192, 32, 8, 128),
    "top 16 of 128, 8192": partial(top_n, 8192, 8),
    "decode step B 16, S 16384": partial(decode, 16, 16384),
    "decode step B 1, S 8192": partial(decode, 1, 8192),
}


def tensors(result: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors of a result, also of nested tuples and lists."""
    if isinstance(result, torch.Tensor):
        yield result
    elif isinstance(result, tuple | list):
        for part in result:
            yield from tensors(part)


def same_bits(one: Call, other: Call) -> bool:
    """Return whether two calls give equal results, with NaN at the same places."""
    pairs = zip(tensors(one()), tensors(other()), strict=True)
    return all(torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0)) for a, b in pairs)


def device_us(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Return samples of each call, each after a flush of L2. The order alternates by round."""
    flush = torch.empty(256 << 20, dtype=torch.int8, device="cuda")
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(ROUNDS + 5):
        order = list(calls) if round_ % 2 else list(calls)[::-1]
        for name in order:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda._sleep(SPIN_CYCLES)
            flush.zero_()
            start.record()
            calls[name]()
            end.record()
            end.synchronize()
            if round_ >= 5:
                samples[name].append(start.elapsed_time(end) * 1e3)
    return samples


def host_us(calls: dict[str, Call]) -> dict[str, list[float]]:
    """Return samples of how long each call holds the CPU. The order alternates by round."""
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for round_ in range(HOST_CALLS):
        for name in list(calls) if round_ % 2 else list(calls)[::-1]:
            start = time.perf_counter_ns()
            calls[name]()
            samples[name].append((time.perf_counter_ns() - start) / 1e3)
        torch.cuda.synchronize()
    return {name: values[20:] for name, values in samples.items()}


def ratio(samples: dict[str, list[float]]) -> tuple[float, float, float]:
    """Return median(other) / median(this), and its bootstrap interval over rounds."""
    this, other = (np.array(samples[name]) for name in ("this", "other"))
    picks = np.random.default_rng(0).integers(0, len(this), (1000, len(this)))
    ratios = np.median(other[picks], 1) / np.median(this[picks], 1)
    lo, hi = np.quantile(ratios, [0.025, 0.975])
    return float(np.median(other) / np.median(this)), float(lo), float(hi)


def main() -> int:
    """Print a line for each call. Return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("other", type=Path, help="the folder nsa_kernels of another checkout")
    parser.add_argument("--only", default="", help="calls whose name holds this text")
    options = parser.parse_args()
    this, other = importlib.import_module("nsa_kernels"), load_other(options.other)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}; other: {options.other}")
    print(
        f"{'call':36} {'bits':5} {'this':>8} {'device: other / this':>24} {'host':>7} {'ratio':>6}"
    )
    lost = 0
    for name, case in CASES.items():
        if options.only not in name:
            continue
        torch.manual_seed(0)
        make = case()
        calls = {"this": make(this), "other": make(other)}
        bits = same_bits(calls["this"], calls["other"])
        device, host = device_us(calls), host_us(calls)
        (value, lo, hi), held = ratio(device), ratio(host)[0]
        lost += not bits or hi < 1 / LONGER
        print(
            f"{name:36} {'same' if bits else 'DIFF':5} {np.median(device['this']):8.1f} "
            f"{value:8.3f} ({lo:.3f} to {hi:.3f}) {np.median(host['this']):7.1f} {held:6.3f}",
            flush=True,
        )
        del make, calls
        torch.cuda.empty_cache()
    return int(lost > 0)


if __name__ == "__main__":
    sys.exit(main())
