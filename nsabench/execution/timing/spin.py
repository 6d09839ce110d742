"""How long the device is held while the host queues a call: found by trying."""

from __future__ import annotations

FIRST_CYCLES = 100_000  # 50 to 60 us
MOST_CYCLES = 100_000_000  # 50 to 60 ms: a mask made in the call takes the host up to 10
# Who sleeps for a quarter of a second is called six times until it is known that no spin hides it;
# with every spin twice as long as the one before it was twelve times.
LARGEST_STEP = 8
CYCLES_PER_S = 3e9  # more than any GPU makes: of a spin that is too short a try comes to nothing


def longer(cycles: int, host_s: float, before_s: float) -> int:
    """The spin of the next try, where a call outlasted one of `cycles`: twice as long, or as long
    as the host took in both of the last two tries, up to `LARGEST_STEP` times as long; 0 where it
    was the longest already.

    host_s, before_s: how long the host was in this try and in the one before, 0.0 if there was
      none. One pause of the host does not make the spins of a whole case long.
    """
    if cycles >= MOST_CYCLES:
        return 0
    taken = min(int(min(host_s, before_s) * CYCLES_PER_S), LARGEST_STEP * cycles)
    return min(max(2 * cycles, taken), MOST_CYCLES)


def shorter(cycles: int, beyond_s: float) -> int:
    """The spin of the next call, where one of `cycles` was long enough: half as long, if that would
    have been enough, too. A pause of the host makes one sample long, and not all that come after.

    beyond_s: how long the host took, but for what the device does before the call anyway.
    """
    half = max(cycles // 2, FIRST_CYCLES)
    return half if beyond_s * CYCLES_PER_S <= half else cycles
