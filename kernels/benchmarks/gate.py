"""Measure what ``selection_attention`` adds to the time of ``selection_ranges``, in microseconds.

``python kernels/benchmarks/gate.py`` times ``choose`` and the counter of calls. With a GPU, it also
times calls of ``selection_attention`` (gate) and ``selection_ranges`` (launcher), in turn.
"""

from __future__ import annotations

import statistics
import time
import timeit

import nsa_kernels
import torch
from nsa_kernels.gate import routing
from nsa_kernels.gate.policy import choose


def _inputs(device: str) -> tuple[torch.Tensor, ...]:
    q = torch.randn(4, 1, 2, 8, 128, device=device, dtype=torch.float16)
    k, v = (torch.randn(4, 2, 1024, 128, device=device, dtype=torch.float16) for _ in range(2))
    ranges = torch.tensor([0, 256], dtype=torch.int32, device=device).expand(4, 1, 2, 1, 2)
    return q, k, v, ranges.contiguous()


def main() -> None:
    """Print the times."""
    cuda = torch.cuda.is_available()
    q, k, v, ranges = _inputs("cuda" if cuda else "cpu")
    policy = nsa_kernels.default_policy()
    for name, call in (
        ("choose", lambda: choose(policy, q, k, v, 1024)),
        ("count", lambda: routing.count_kernel("queue")),
    ):
        cost = min(timeit.repeat(call, number=20000, repeat=9)) / 20000
        print(f"{name:12} {cost * 1e6:.3f} us")
    if not cuda:
        return
    calls = {
        "launcher": lambda: nsa_kernels.selection_ranges(q, k, v, ranges),
        "gate": lambda: nsa_kernels.selection_attention(q, k, v, ranges),
    }
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(3000):
        for name, call in calls.items():
            start = time.perf_counter_ns()
            call()
            samples[name].append((time.perf_counter_ns() - start) / 1e3)
        torch.cuda.synchronize()
    for name, taken in samples.items():
        print(f"{name:12} {statistics.median(taken[500:]):.2f} us")


if __name__ == "__main__":
    main()
