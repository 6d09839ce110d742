"""How long the device is held while the host queues a call: found by trying."""

from __future__ import annotations

FIRST_CYCLES = 100_000  # 50 to 60 us
MOST_CYCLES = 100_000_000  # 50 to 60 ms: a mask made in the call takes the host up to 10
# Who holds the host for longer is hidden by no spin: the longest lasts as long at 0.67 GHz.
OUTLASTS_S = 0.15
CYCLES_PER_S = 3e9  # more than any GPU makes: of a spin that is too short a try comes to nothing


def longer(cycles: int, host_s: float, before_s: float) -> int:
    """The spin of the next try, where a call outlasted one of `cycles`: twice as long, or as long
    as the host took in both of the last two tries; 0 where no spin is long enough.

    host_s, before_s: how long the host was in this try and in the one before, 0.0 if there was
      none. One pause of the host does not make the spins of a whole case long.
    """
    taken_s = min(host_s, before_s)
    if cycles >= MOST_CYCLES or taken_s >= OUTLASTS_S:
        return 0
    return min(max(2 * cycles, int(taken_s * CYCLES_PER_S)), MOST_CYCLES)


def shorter(cycles: int, beyond_s: float) -> int:
    """The spin of the next call, where one of `cycles` was long enough: half as long, if that would
    have been enough, too. A pause of the host makes one sample long, and not all that come after.

    beyond_s: how long the host took, but for what the device does before the call anyway.
    """
    half = max(cycles // 2, FIRST_CYCLES)
    return half if beyond_s * CYCLES_PER_S <= half else cycles
