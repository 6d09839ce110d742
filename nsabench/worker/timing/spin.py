"""Decide how long the device is held while the host queues a call."""

from __future__ import annotations

FIRST_CYCLES = 100_000  # 50 to 60 us.
MOST_CYCLES = 100_000_000  # 50 to 60 ms.
OUTLASTS_S = 0.15  # The longest spin at 0.67 GHz, so no spin hides a longer call.
CYCLES_PER_S = 3e9  # More than any GPU has, since a try with too short a spin is wasted.


def longer(cycles: int, host_s: float, before_s: float) -> int:
    """Return the cycles of the next spin after a call outlasted one; 0 if no spin is enough.

    It is twice as long, or as long as the host took in both of the last two tries. So one pause of
    the host does not make all spins of a case long.
    """
    taken_s = min(host_s, before_s)
    if cycles >= MOST_CYCLES or taken_s >= OUTLASTS_S:
        return 0
    return min(max(2 * cycles, int(taken_s * CYCLES_PER_S)), MOST_CYCLES)


def shorter(cycles: int, beyond_s: float) -> int:
    """Return the cycles after a spin was enough. beyond_s: the host's time, less the flush."""
    half = max(cycles // 2, FIRST_CYCLES)
    return half if beyond_s * CYCLES_PER_S <= half else cycles
