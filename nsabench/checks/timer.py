"""Timer: does the clock of this run read a known duration right, within the run's own ceilings?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record

KNOWN_DURATION_TOLERANCE = 0.02
# A measured ceiling above the data sheet's means that the measurement is broken; one far below
# means that the device is not what its name says (partitioned, shared, capped).
ABOVE_SHEET = 1.05
BELOW_SHEET = 0.6


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Findings about the whole run: its timer, and its ceilings against the data sheet."""
    return [*_known_duration(limits), *_against_sheet(limits)]


def _known_duration(limits: Limits) -> Iterator[Finding]:
    error = limits.known_duration_error
    if error is not None and not abs(error) <= KNOWN_DURATION_TOLERANCE:
        sentence = (
            f"the timer reads a kernel of known duration {error:+.1%} off, over the "
            f"{KNOWN_DURATION_TOLERANCE:.0%} allowed"
        )
        yield Finding("timer", Effect.INCONCLUSIVE, sentence)


def _against_sheet(limits: Limits) -> Iterator[Finding]:
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
