"""What is done with many is done in their order, and the first that fails says so."""

from __future__ import annotations

import os
import signal

import pytest

from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.processes import WORTH_IT, parallel_map


def _square(n: int) -> tuple[int, int]:
    if n == 2 * WORTH_IT:
        raise UsageError("it is one too many", "leave it away.")
    return n * n, os.getpid()


@pytest.mark.parametrize("count", [0, 1, WORTH_IT - 1, WORTH_IT, 2 * WORTH_IT])
def test_the_answers_come_in_order(count: int) -> None:
    answers = list(parallel_map(_square, range(count)))
    assert [answer for answer, _ in answers] == [n * n for n in range(count)]
    few_cores = len(os.sched_getaffinity(0)) < 2
    here = {process for _, process in answers} <= {os.getpid()}
    assert here == (count < WORTH_IT or few_cores)


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core does it in this process")
def test_few_large_things_are_worth_a_process_each() -> None:
    answers = list(parallel_map(_square, range(2), 2))
    assert [answer for answer, _ in answers] == [0, 1]
    assert os.getpid() not in {process for _, process in answers}


def test_what_one_raises_is_raised_with_its_remedy() -> None:
    with pytest.raises(UsageError, match="one too many") as raised:
        list(parallel_map(_square, range(3 * WORTH_IT)))
    assert raised.value.remedy == "leave it away."


def test_nothing_but_answers_passes_between_processes() -> None:
    """Neither a function of the moment nor what it is done with can be handed over."""
    things = [(lambda n=n: n) for n in range(WORTH_IT)]
    assert list(parallel_map(lambda thing: thing() + 1, things)) == list(range(1, WORTH_IT + 1))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core does it in this process")
def test_a_process_that_was_killed_is_said_with_a_remedy() -> None:
    here = os.getpid()

    def die(n: int) -> int:
        if n == WORTH_IT and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return n

    with pytest.raises(EnvironmentRefused, match="was killed") as raised:
        list(parallel_map(die, range(10 * WORTH_IT)))
    assert "memory" in raised.value.remedy and "taskset" in raised.value.remedy
