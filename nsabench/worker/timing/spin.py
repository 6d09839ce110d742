"""How long the device is held while the host queues a call."""

from __future__ import annotations

FIRST_CYCLES = 100_000  # 50 to 60 us
MOST_CYCLES = 100_000_000  # 50 to 60 ms: a mask made in the call takes the host up to 10
# The longest spin lasts as long at 0.67 GHz, so no spin hides a longer call.
OUTLASTS_S = 0.15
CYCLES_PER_S = 3e9  # more than any GPU makes: a try with too short a spin is wasted


def longer(cycles: int, host_s: float, before_s: float) -> int:
    """Return the cycles of the next try after a call outlasted a spin; 0 if no spin is enough.

    It is twice as long, or as long as the host took in both of the last two tries. So one pause of
    the host does not make the spins of a whole case long. before_s: 0.0 without an earlier try.
    """
    taken_s = min(host_s, before_s)
    if cycles >= MOST_CYCLES or taken_s >= OUTLASTS_S:
        return 0
    return min(max(2 * cycles, int(taken_s * CYCLES_PER_S)), MOST_CYCLES)


def shorter(cycles: int, beyond_s: float) -> int:
    """Return the cycles of the next call after a spin was enough: half, if that is enough as well.

    beyond_s: how long the host took, less what the device does before the call anyway.
    """
    half = max(cycles // 2, FIRST_CYCLES)
    return half if beyond_s * CYCLES_PER_S <= half else cycles
