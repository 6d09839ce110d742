"""How long the device is held while the host queues a call: found by trying."""

from __future__ import annotations

CYCLES_PER_S = 2e9  # of the fastest GPUs; on others a spin is a little longer than it need be


def longer(cycles: int, host_s: float, *, most: int, largest_step: int) -> int:
    """The spin of the next try, where a call outlasted one of `cycles`: as long as the host took,
    and between twice and `largest_step` times as long as before; 0 where it was `most` already.

    host_s: what the host took. It may have taken it once, for a first call, so one try does not
    decide for all later ones.
    """
    if cycles >= most:
        return 0
    taken = min(int(host_s * CYCLES_PER_S), largest_step * cycles)
    return min(max(2 * cycles, taken), most)
