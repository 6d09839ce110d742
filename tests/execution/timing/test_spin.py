"""How long the device is held for a call that outlasts its spin."""

from __future__ import annotations

from functools import partial

import pytest

from nsabench.execution.timing.spin import CYCLES_PER_S, longer

MOST = 100_000_000
grown = partial(longer, most=MOST, largest_step=8)


def tries(host_s: float) -> list[int]:
    """The spins that are tried for a call which takes its host so long, 0 the last if it is."""
    spins = [100_000]
    while spins[-1] and spins[-1] / CYCLES_PER_S < host_s:
        spins.append(grown(spins[-1], host_s))
    return spins


@pytest.mark.parametrize(("host_s", "count"), [(40e-6, 1), (90e-6, 2), (380e-6, 2), (2e-3, 3)])
def test_a_call_is_hidden_after_few_tries(host_s: float, count: int) -> None:
    spins = tries(host_s)
    assert len(spins) == count
    assert host_s * CYCLES_PER_S <= spins[-1] <= 8 * host_s * CYCLES_PER_S


def test_who_cannot_be_hidden_is_known_soon() -> None:
    """A control that sleeps for a quarter of a second was called twelve times, at every spin."""
    assert tries(0.25) == [100_000, 800_000, 6_400_000, 51_200_000, MOST, 0]


def test_one_slow_first_call_makes_no_spin_of_the_longest() -> None:
    assert grown(100_000, host_s=2.0) == 800_000


def test_a_call_that_is_late_though_its_host_was_not_is_given_twice_as_long() -> None:
    assert grown(100_000, host_s=0.0) == 200_000
