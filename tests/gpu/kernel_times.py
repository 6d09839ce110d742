"""Where the time of the whole attention is: each kernel of a call, by torch's profiler.

    just gpu-kernel-times [TOKENS:HEADS/KEY_HEADS ...]

Prints for a forward, and for a forward with its backward, the sum of the kernels of a call (ms) and
each kernel by itself (µs), means of five calls. bfloat16, D = 128, windows of 512, 16 blocks of 64.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from typing import Any

import torch
from nsa_kernels import nsa_attention
from torch.profiler import ProfilerActivity, profile

CALLS = 5
CASES = ("8192:64/4", "65536:64/4", "8192:32/8", "65536:32/8")


def sizes(case: str) -> tuple[int, int, int]:
    """Tokens, heads and key heads of `8192:64/4`."""
    tokens, _, heads = case.partition(":")
    query_heads, _, key_heads = heads.partition("/")
    return int(tokens), int(query_heads), int(key_heads)


def kernels(call: Callable[[], Any]) -> tuple[Counter[str], Counter[str]]:
    """By kernel its time in one call (µs), and how often it is launched."""
    for _ in range(3):  # from the third on a call is replayed
        call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        for _ in range(CALLS):
            call()
        torch.cuda.synchronize()
    time_us: Counter[str] = Counter()
    launches: Counter[str] = Counter()
    for event in profiler.events():
        if event.device_type.name == "CUDA":
            time_us[event.name[:70]] += event.device_time / CALLS
            launches[event.name[:70]] += 1
    return time_us, Counter({name: count // CALLS for name, count in launches.items()})


def show(case: str) -> None:
    tokens, heads, key_heads = sizes(case)
    torch.manual_seed(0)
    like: dict[str, Any] = {"device": "cuda", "dtype": torch.bfloat16}
    q = torch.randn(1, tokens, heads, 128, **like).requires_grad_()
    k, v = (torch.randn(1, tokens, key_heads, 128, **like).requires_grad_() for _ in "kv")
    gates = torch.rand(1, tokens, heads, 3, **like).requires_grad_()
    grad = torch.randn_like(q)

    def forward() -> Any:
        with torch.no_grad():
            return nsa_attention(q, k, v, gates)

    def step() -> Any:
        return torch.autograd.grad(nsa_attention(q, k, v, gates), (q, k, v, gates), grad)

    for name, call in (("forward", forward), ("step", step)):
        time_us, launches = kernels(call)
        print(f"{case} {name}: {sum(time_us.values()) / 1e3:.3f} ms", flush=True)
        for kernel, took in time_us.most_common():
            print(f"  {took:9.1f} us  x{launches[kernel]:<3d} {kernel}", flush=True)


if __name__ == "__main__":
    for one in sys.argv[1:] or CASES:
        show(one)
