"""Timer: does this run's clock read a known duration right, and are its ceilings plausible?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record

KNOWN_DURATION_TOLERANCE = 0.02
# Above the data sheet, the measurement of a ceiling is broken. Far below it, the device is
# partitioned, shared or capped.
ABOVE_SHEET = 1.05
BELOW_SHEET = 0.6


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    return [*_check_known_duration(limits), *_check_ceilings(limits)]


def _check_known_duration(limits: Limits) -> Iterator[Finding]:
    error = limits.known_duration_error
    if error is not None and not abs(error) <= KNOWN_DURATION_TOLERANCE:
        sentence = (
            f"the timer reads a kernel of known duration {error:+.1%} off, over the "
            f"{KNOWN_DURATION_TOLERANCE:.0%} allowed"
        )
        yield Finding("timer", Effect.INCONCLUSIVE, sentence)


def _check_ceilings(limits: Limits) -> Iterator[Finding]:
    sheet = limits.sheet
    if sheet is None:
        return
    pairs = [("memory bandwidth", "GB/s", limits.memory_gb_s, sheet.memory_gb_s)]
    pairs += [
        (f"{dtype} rate", "TFLOP/s", rate, sheet.tflop_s.get(dtype))
        for dtype, rate in limits.tflop_s.items()
    ]
    for what, unit, measured, nominal in pairs:
        if measured is None or nominal is None:
            continue
        says = f"the measured {what} of {measured:.0f} {unit} is {measured / nominal:.0%} of"
        if measured > ABOVE_SHEET * nominal:
            sentence = f"{says} the {nominal:.0f} of the {sheet.source}: it cannot be right"
            yield Finding("timer", Effect.INCONCLUSIVE, sentence)
        elif measured < BELOW_SHEET * nominal:
            sentence = f"{says} the {nominal:.0f} of the {sheet.source}"
            yield Finding("timer", Effect.NOTE, sentence)
