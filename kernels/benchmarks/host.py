"""Measure how long each public call holds the CPU, in microseconds, and which parts take how long.

``python kernels/benchmarks/host.py [--only TEXT] [--launches]`` prints a line for each call:

- host (target: bar): the whole call. Only batches of calls wait for the device.
- as Triton: the call without replays, as while a profiler watches.
- allocate, launch, other: the parts of the call that allocate the memory of replays, that call
  compiled kernels, and the others: checks, the signature, torch's operators.
- programs, launches: how many the call replays. ``--launches`` adds how many CUDA saw.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any
from unittest import mock

import nsa_kernels
import torch
from against import backward, blocks, compressed, decode, draw, ranges, rows, sliding, top_n, varlen
from nsa_kernels.launch import replay
from torch.nn.functional import scaled_dot_product_attention as sdpa

Call = Callable[[], Any]
BATCHES, CALLS = 40, 10
BARS = {
    "rows": 15, "ranges": 20, "window": 25, "compressed with scores": 35,
    "blocks": 60, "whole": 150, "decode step": 40,
}  # fmt: skip


def dense_rows(n: int, h: int, d: int, length: int) -> Call:
    """Return a call of SDPA for one query in each head of a row, on the sizes of ``rows``."""
    q, k, v = (draw(n, x, length, d, dtype=torch.float16) for x in (h, 1, 1))
    return partial(sdpa, q[:, :, :1], k, v, enable_gqa=True)


def dense_causal(tokens: int, hq: int, h: int) -> Call:
    """Return a call of causal SDPA on the sizes of a prefill."""
    q, k, v = (draw(1, x, tokens, 128) for x in (hq, h, h))
    return partial(sdpa, q, k, v, is_causal=True, enable_gqa=True)


def dense_decode(s: int) -> Call:
    """Return a call of SDPA on the sizes of a decode step."""
    q, k, v = draw(1, 64, 1, 128), draw(1, 4, s, 128), draw(1, 4, s, 128)
    return partial(sdpa, q, k, v, enable_gqa=True)


def whole(tokens: int, hq: int, h: int) -> tuple[torch.Tensor, ...]:
    """Draw q, k, v and gates of a prefill."""
    kv = draw(1, tokens, h, 128), draw(1, tokens, h, 128)
    return draw(1, tokens, hq, 128), *kv, torch.rand(1, tokens, hq, 3, device="cuda").bfloat16()


def whole_backward(tokens: int, hq: int, h: int) -> Call:
    """Return a call that computes the gradients of a prefill, by autograd."""
    return backward(nsa_kernels.nsa_attention, *whole(tokens, hq, h))


def growing(s: int) -> Call:
    """Return a decode step whose cache has one token more in each call, in a larger buffer."""
    room = 4096
    q, gates = draw(1, 64, 128), torch.rand(1, 64, 3, device="cuda").bfloat16()
    k, v = draw(1, 4, s + room, 128), draw(1, 4, s + room, 128)
    k_cmp, v_cmp = draw(1, 4, (s + room) // 16, 128), draw(1, 4, (s + room) // 16, 128)
    tokens = s

    def step() -> torch.Tensor:
        nonlocal tokens
        tokens = s + (tokens - s + 1) % room
        keys = (tokens - 32) // 16 + 1
        return nsa_kernels.decode_step(
            q, k[:, :, :tokens], v[:, :, :tokens], k_cmp[:, :, :keys], v_cmp[:, :, :keys], gates
        )

    return step


def calls() -> Iterator[tuple[str, Callable[[], Call]]]:
    """Yield the name and the maker of each call. SDPA comes before its competitors."""
    n = nsa_kernels
    yield "SDPA, rows 256,4,64,256", partial(dense_rows, 256, 4, 64, 256)
    yield "rows 256,4,64,256", lambda: rows(256, 4, 64, 256)(n)
    yield "rows 8,8,128,4096 (split)", lambda: rows(8, 8, 128, 4096)(n)
    yield "packed rows 256,4,64,256", lambda: varlen(256, 4, 64, 256)(n)
    yield "ranges 16,1,4,16, S 16384", lambda: ranges(16, 1, 4, 16, 128, 16384, 16, False)(n)
    yield "SDPA causal 2048, 32/8", partial(dense_causal, 2048, 32, 8)
    yield "window 2048, 32/8", lambda: sliding(2048, 32, 8, 128)(n)
    yield "compressed with scores 2048, 32/8", lambda: compressed(2048, 32, 8, 128)(n)
    yield "top 16 of 32, 2048", lambda: top_n(2048, 8)(n)
    yield "blocks 2048, 32/8", lambda: blocks(2048, 32, 8, 128, False)(n)
    yield "blocks 8192, 64/4", lambda: blocks(8192, 64, 4, 128, False)(n)
    yield "blocks backward 2048, 32/8", lambda: blocks(2048, 32, 8, 128, True)(n)
    yield "whole 2048, 32/8", lambda: partial(n.nsa_attention, *whole(2048, 32, 8))
    yield "whole backward 2048, 32/8", partial(whole_backward, 2048, 32, 8)
    yield "SDPA decode, S 8192", partial(dense_decode, 8192)
    yield "decode step B 1, S 8192", lambda: decode(1, 8192)(n)
    yield "decode step, S growing from 8192", partial(growing, 8192)


def held(call: Call, batches: int = BATCHES) -> float:
    """Return how long a call holds the CPU, in us: the median over batches."""
    taken = []
    for _ in range(batches):
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(CALLS):
            call()
        taken.append((time.perf_counter_ns() - start) / 1e3 / CALLS)
    torch.cuda.synchronize()
    return statistics.median(taken)


def replayed_by(call: Call) -> list[tuple[replay.Program, tuple[Any, ...], list[int]]]:
    """Return the programs that a call replays, with the arguments and addresses of each."""
    found = []
    original = replay.Program.__call__

    def noted(self: replay.Program, args: tuple[Any, ...], addresses: list[int]) -> Any:
        found.append((self, args, list(addresses)))
        return original(self, args, addresses)

    with mock.patch.object(replay.Program, "__call__", noted):
        kept = call()
    torch.cuda.synchronize()
    del kept
    return found


def seen_by_cuda(call: Call) -> str:
    """Return how many kernels, fills and copies CUDA saw in one call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call()
        torch.cuda.synchronize()
    found = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    return str(len(found))


def row(name: str, call: Call, count: bool) -> str:
    """Return a line of the table."""
    for _ in range(5):
        call()
    host = held(call)
    with mock.patch.object(replay, "undisturbed", lambda: False):
        call()
        plain = held(call, BATCHES // 4)
    programs = replayed_by(call)
    made = starts = 0.0
    launches = 0
    for program, args, addresses in programs:
        memories = program.allocate()
        room = [*addresses, *(x.data_ptr() for x in memories)]
        made += held(program.allocate, BATCHES // 4)
        starts += held(lambda of=program, at=room: of.launch(list(at)), BATCHES // 4)
        launches += len(program.launches)
        del args
    bar = next((bar for start, bar in BARS.items() if name.startswith(start)), None)
    text = f"{name:36} {host:8.1f} {plain:10.1f} {made:9.1f} {starts:7.1f} "
    text += f"{host - made - starts:7.1f} {len(programs):9} {launches:9} {bar or '':>5}"
    return text + (f" {seen_by_cuda(call):>6}" if count else "")


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="calls whose name holds this text")
    parser.add_argument("--launches", action="store_true", help="also count what CUDA saw")
    options = parser.parse_args()
    import triton

    name = torch.cuda.get_device_name()
    print(f"{name}, torch {torch.__version__}, Triton {triton.__version__}; us a call")
    print(
        f"{'call':36} {'host':>8} {'as Triton':>10} {'allocate':>9} {'launch':>7} {'other':>7} "
        f"{'programs':>9} {'launches':>9} {'bar':>5}{' CUDA saw' if options.launches else ''}"
    )
    for label, make in calls():
        if options.only in label:
            torch.manual_seed(0)
            call = make()
            print(row(label, call, options.launches), flush=True)
            del call
            torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
