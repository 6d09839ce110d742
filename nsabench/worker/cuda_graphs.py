"""Capturing calls in CUDA graphs, one a set of inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import torch

from nsabench.worker import state

T = TypeVar("T")


def capture(
    ready: Callable[[int], Callable[[], T]], count: int
) -> list[tuple[torch.cuda.CUDAGraph, T]]:
    """A graph of the call that `ready` gives for each of `count` sets, and what the call returned:
    the memory that each replay writes to. Raises what the call or its capture raises."""
    graphs = []
    with state.no_garbage():
        for index in range(count):
            graph, call = torch.cuda.CUDAGraph(), ready(index)
            with torch.cuda.graph(graph):
                answers = call()
            graphs.append((graph, answers))
    return graphs
