"""What a replay takes in Python alone: programs of the whole attention, whose kernels do nothing.

    TRITON_INTERPRET=1 python kernels/benchmarks/replay.py

On a CPU, in microseconds a call: allocations are those of a CPU, launches call a function that
returns at once. What a GPU's driver takes is not in it; ``host.py`` measures that.
"""

from __future__ import annotations

import statistics
import time
from typing import Any
from unittest import mock

import torch
from nsa_kernels.attention import operator
from nsa_kernels.attention.whole import nsa_attention
from nsa_kernels.band import attend
from nsa_kernels.jit.direct import Direct
from nsa_kernels.launch import replay

CALLS, BATCHES = 200, 30
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 20}
BEFORE = (1, False, False, None, None, (), None, None, None)


def nothing(*_: Any) -> None:
    """Stands for a compiled launcher."""


class Idle(replay.Program):
    """A program whose launches do nothing."""

    def __init__(self, tape: Any, returned: Any, several: bool) -> None:
        tape.launches = [
            (
                made._replace(
                    direct=Direct(nothing, BEFORE),
                    tail=(*made.numbers, *made.constants.values()),
                ),
                places,
            )
            for made, places in tape.launches
        ]
        super().__init__(tape, returned, several)


def programs() -> dict[str, Idle]:
    """The window, and the whole in both directions, as their second call notes them."""
    draw = [torch.randn(1, 70, h, 16) for h in (4, 2, 2)]
    tensors = [x.requires_grad_() for x in (*draw, torch.rand(1, 70, 4, 3))]
    for _ in range(2):
        with torch.no_grad():
            nsa_attention(*tensors, **SIZES)
            attend.launch_attention(*tensors[:3], None, None, 1, 1, 20, 0.25)
        nsa_attention(*tensors, **SIZES).sum().backward()
    of = {
        "window": attend.launch_attention,
        "whole forward, kept": operator._launch_kept,
        "whole backward": operator._launch_backward,
    }
    found = {}
    for name, function in of.items():
        (found[name],) = (x for x in function.programs.values() if isinstance(x, Idle))
    return found


def held(program: Idle) -> tuple[float, float]:
    """Median and least of batches, in us of CPU time a call."""
    args = tuple(torch.empty(16) for _ in range(program.inputs))
    addresses = [x.data_ptr() for x in args]
    taken = []
    for _ in range(BATCHES):
        start = time.thread_time_ns()
        for _ in range(CALLS):
            program(args, list(addresses))
        taken.append((time.thread_time_ns() - start) / 1e3 / CALLS)
    return statistics.median(taken), min(taken)


def main() -> None:
    """Print the table."""
    with mock.patch.object(replay, "Program", Idle):
        found = programs()
    with (
        mock.patch.object(replay, "AVAILABLE", True),
        mock.patch.object(replay, "current_stream", lambda device: 0),
    ):
        print(f"{'program':24} {'launches':>9} {'median':>8} {'least':>8}")
        for name, program in found.items():
            median, least = held(program)
            print(f"{name:24} {len(program.launches):9} {median:8.1f} {least:8.1f}")


if __name__ == "__main__":
    main()
