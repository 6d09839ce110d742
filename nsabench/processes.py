"""One thing done with many, on all cores, where there are enough to be worth the processes."""

from __future__ import annotations

import gc
import multiprocessing
import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any, TypeVar

from nsabench.errors import EnvironmentRefused

A = TypeVar("A")
B = TypeVar("B")

WORTH_IT = 32
AHEAD = 4  # answers a process that wait to be taken: they are held in memory
MOST = 16  # processes


# What a process does, and with what: it has them from the one that it was forked from, so that
# neither is handed over, and an op of the user's file is known there, too.
_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None


def each(do: Callable[[A], B], things: Sequence[A], worth_it: int = WORTH_IT) -> Iterator[B]:
    """What is answered for each, in their order. Raises what `do` raises, for the first of them,
    and `EnvironmentRefused` when a process was killed.

    Only answers pass from process to process, so `do` may be any function. worth_it: fewer things
    than that are done by this process.
    """
    processes = min(len(os.sched_getaffinity(0)), MOST)
    if len(things) < worth_it or processes < 2:
        yield from map(do, things)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(do, things)
    ) as pool:
        yield from _ahead(pool, len(things), processes * AHEAD)


def _begin(do: Callable[[Any], Any], things: Sequence[Any]) -> None:
    global _work
    gc.freeze()  # what it was forked with is not walked through, and so stays shared
    _work = do, things


def _done(place: int) -> Any:
    assert _work is not None
    do, things = _work
    return do(things[place])


def _ahead(pool: ProcessPoolExecutor, count: int, most: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    try:
        for place in range(count):
            waiting.append(pool.submit(_done, place))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise EnvironmentRefused(
            "a process that shares the work was killed, as a system does that is short of memory",
            "give it more memory, or do the same with one process: `taskset -c 0 nsabench ...`; "
            "where it was memory, the kernel's log says so: `dmesg | grep -i oom`.",
        ) from None
    finally:
        for future in waiting:
            future.cancel()
