"""Timer: does this run's clock read a known duration right?"""

from __future__ import annotations

from collections.abc import Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record

KNOWN_DURATION_TOLERANCE = 0.02


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    error = limits.known_duration_error
    if error is None or abs(error) <= KNOWN_DURATION_TOLERANCE:
        return []
    sentence = (
        f"the timer reads a kernel of known duration {error:+.1%} off, over the "
        f"{KNOWN_DURATION_TOLERANCE:.0%} allowed"
    )
    return [Finding("timer", Effect.INCONCLUSIVE, sentence)]
