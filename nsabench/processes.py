"""Apply a function to many things on all cores."""

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
AHEAD = 4  # waiting answers for each process
MOST = 16  # processes


# A forked process inherits the function and the things, even an op of the user's file.
_work: tuple[Callable[[Any], Any], Sequence[Any]] | None = None


def parallel_map(
    do: Callable[[A], B], things: Sequence[A], worth_it: int = WORTH_IT
) -> Iterator[B]:
    """Yield `do(thing)` for each thing, in order; with few things, in this process.

    Workers are forked, so `do` may be any function. Raises `EnvironmentRefused` if one was killed.
    """
    processes = min(len(os.sched_getaffinity(0)), MOST)
    if len(things) < worth_it or processes < 2:
        yield from map(do, things)
        return
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(
        processes, mp_context=context, initializer=_begin, initargs=(do, things)
    ) as pool:
        yield from _yield_in_order(pool, len(things), processes * AHEAD)


def _begin(do: Callable[[Any], Any], things: Sequence[Any]) -> None:
    global _work
    gc.freeze()  # the inherited pages stay shared
    _work = do, things


def _do_place(place: int) -> Any:
    assert _work is not None
    do, things = _work
    return do(things[place])


def _yield_in_order(pool: ProcessPoolExecutor, count: int, most: int) -> Iterator[Any]:
    waiting: deque[Future[Any]] = deque()
    try:
        for place in range(count):
            waiting.append(pool.submit(_do_place, place))
            if len(waiting) >= most:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    except BrokenProcessPool:
        raise EnvironmentRefused(
            "a process that shares the work was killed, probably because memory ran out",
            "free memory, or use one process: `taskset -c 0 nsabench ...`; `dmesg | grep -i oom` "
            "shows whether it was memory.",
        ) from None
    finally:
        for future in waiting:
            future.cancel()
