"""Scaling: a time must grow with its compulsory work once the work exceeds the launch cost.

An honest time is at least a fixed cost plus the work, partly overlapped. It may stay flat while the
work takes less than the fixed cost. If the work fills half of a time, four times the work does not
fit into the same time.
"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench import labels
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits, beaten, least
from nsabench.checks.series import length_series, length_text
from nsabench.model.record import Record

GROWTH_OF_WORK = 4.0
FLAT = 1.1  # a time that grows less than this over such growth of work is flat.
FILLED = 0.5  # if its work alone takes this share of a time, a flat time is suspicious.
# Work below this can hide behind launches and the latency of the first loads.
LAUNCH_FLOOR_MS = 0.02


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Find the longest flat part of each length series that launch costs do not explain."""
    flats = (_find_flat(ladder, limits) for ladder in length_series(rows))
    return [finding for finding in flats if finding is not None]


def _find_flat(ladder: list[Record], limits: Limits) -> Finding | None:
    for top in reversed(ladder):
        for bottom in ladder:
            grown = top.bytes_min / bottom.bytes_min
            if grown < GROWTH_OF_WORK:
                break
            assert top.median_ms is not None
            assert bottom.median_ms is not None
            if top.median_ms < FLAT * bottom.median_ms:
                effect = _judge_flat(top, limits)
                if effect is not None:
                    return _describe(bottom, top, effect, limits)
    return None


def _judge_flat(top: Record, limits: Limits) -> Effect | None:
    assert top.median_ms is not None
    cold = least(top, limits, l2_bytes=0)
    if cold is None:
        return Effect.NOTE
    if cold.ms < LAUNCH_FLOOR_MS or cold.ms < FILLED * top.median_ms:
        return None
    return Effect.IMPLAUSIBLE if beaten(top, limits) else Effect.INCONCLUSIVE


def _describe(bottom: Record, top: Record, effect: Effect, limits: Limits) -> Finding:
    cold = least(top, limits, l2_bytes=0)
    if cold is None:
        why = "without known ceilings it cannot be told from launch cost"
    else:
        why = f"from memory {cold.why} take {cold.ms:.3g} ms"
        if effect is Effect.INCONCLUSIVE and limits.l2_bytes:
            why += "; only a warm L2 could explain it"
    sentence = (
        f"time is flat while work grows: {bottom.median_ms:.3g} ms at {length_text(bottom)} and "
        f"{top.median_ms:.3g} ms at {length_text(top)} ({labels.case(top)}), for "
        f"{top.bytes_min / bottom.bytes_min:.1f} times the bytes; {why}"
    )
    return Finding("scaling", effect, sentence, *top.key)
