"""How long the device is held for a call that outlasts its spin."""

from __future__ import annotations

import pytest

from nsabench.worker.timing.cuda import (
    CYCLES_PER_S,
    FIRST_CYCLES,
    MOST_CYCLES,
    lengthen_spin,
    shorten_spin,
)


def tries(host_s: float) -> list[int]:
    """The spins that are tried for a call which takes its host so long, 0 the last if it is."""
    spins, before_s = [FIRST_CYCLES], 0.0
    while spins[-1] and spins[-1] / CYCLES_PER_S < host_s:
        spins.append(lengthen_spin(spins[-1], host_s, before_s))
        before_s = host_s
    return spins


@pytest.mark.parametrize(
    ("host_s", "count"), [(30e-6, 1), (60e-6, 2), (400e-6, 3), (2e-3, 3), (0.03, 3)]
)
def test_a_call_is_hidden_after_few_tries(host_s: float, count: int) -> None:
    spins = tries(host_s)
    assert len(spins) == count
    assert host_s * CYCLES_PER_S <= spins[-1] <= 4 * host_s * CYCLES_PER_S


def test_one_pause_of_the_host_makes_no_long_spin() -> None:
    """A sample of each later round would hold the device for as long."""
    assert lengthen_spin(6_400_000, host_s=0.03, before_s=0.0) == 12_800_000
    assert lengthen_spin(6_400_000, host_s=0.03, before_s=20e-6) == 12_800_000


def test_a_call_that_is_late_though_its_host_was_not_is_given_twice_as_long() -> None:
    assert lengthen_spin(100_000, host_s=0.0, before_s=0.0) == 200_000


@pytest.mark.parametrize("beyond_s", [-30e-6, 0.0, 10e-6, 60e-6, 400e-6, 2e-3])
def test_a_spin_shrinks_to_one_that_still_hides_the_call(beyond_s: float) -> None:
    spin = MOST_CYCLES
    while (next_ := shorten_spin(spin, beyond_s)) != spin:
        spin = next_
    assert spin >= max(beyond_s * CYCLES_PER_S, FIRST_CYCLES)
    assert spin <= max(4 * beyond_s * CYCLES_PER_S, FIRST_CYCLES)
