"""One thing done with many, on all cores, where there are enough to be worth the processes."""

from __future__ import annotations

import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")

WORTH_IT = 32
AHEAD = 4  # answers a process that wait to be taken: they are held in memory
MOST = 16  # processes


def each(do: Callable[[A], B], things: Sequence[A]) -> Iterator[B]:
    """What is answered for each, in their order. Raises what `do` raises, for the first of them."""
    processes = min(len(os.sched_getaffinity(0)), MOST)
    if len(things) < WORTH_IT or processes < 2:
        yield from map(do, things)
        return
    # Forked, so that an op of the user's file is known there, too.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(processes, mp_context=context) as pool:
        yield from _ahead(pool, do, things, processes * AHEAD)


def _ahead(
    pool: ProcessPoolExecutor, do: Callable[[A], B], things: Iterable[A], most: int
) -> Iterator[B]:
    waiting: deque[Future[B]] = deque()
    try:
        for thing in things:
            waiting.append(pool.submit(do, thing))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        for future in waiting:
            future.cancel()
