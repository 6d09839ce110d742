"""A comparison as Markdown, for a pull request or a file that can be compared by diff."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.model.vocabulary import Role, Status
from nsabench.output.compare import over_many
from nsabench.output.compare.band import BAND_IN_QUEUE
from nsabench.output.compare.comparison import (
    Comparison,
    Mean,
    Measurement,
)
from nsabench.output.compare.payments import PaymentShift
from nsabench.output.compare.shift import Shift
from nsabench.output.compare.vocabulary import Difference
from nsabench.output.report.markdown import table
from nsabench.text import code, markdown

MOST = 60  # lines of a table of cells; the JSON holds all


def render(comparison: Comparison) -> str:
    """The same runs give the same text."""
    parts = [_head(comparison), _runs(comparison)]
    if comparison.payments:
        parts.append(_pays(comparison))
    for later, side in enumerate(comparison.later):
        parts.append(_changes(comparison, later, side.name))
        parts.append(_means(comparison, later, side.name))
        parts.append(_slower(comparison, later, side.name))
        if any(cell.in_queue[later] for cell in comparison.cells):
            parts.append(_slower_in_queue(comparison, later, side.name))
    if len(comparison.later) > 1:
        parts.append(_over_many(comparison))
    parts.append(_candidates(comparison))
    return "\n\n".join("\n".join(part) for part in parts) + "\n"


def ratio(shift: Shift) -> str:
    if shift.ratio is None:
        return "–"
    return f"{shift.ratio:.3f} [{shift.lo:.3f}, {shift.hi:.3f}]"


def counts(mean: Mean) -> str:
    words = [f"{mean.differences[d]} {d}" for d in Difference if mean.differences[d]]
    return ", ".join(words) or "declined by both"


def _head(comparison: Comparison) -> Iterator[str]:
    yield f"# Comparison with {markdown(comparison.first.name)}\n"
    yield (
        "Ratio: median time in the first run over that in the later one, with its 95 % interval; "
        "above 1 the later one is faster. It is of the samples, less what the timer adds: of the "
        "regime device, or graph where that is the mode. Where a baseline of the case is known to "
        "be the same code in both runs, the ratio is to that one, so that the hosts cancel. Within "
        f"{comparison.band:.0%} of 1, or further where such baselines of like duration differ by "
        "more, they are the same."
    )
    for side in comparison.sides:
        if side.objection:
            yield f"\n**{markdown(side.objection)}.**"
    if comparison.disagreements:
        yield "\nThe plans differ, and only what they have in common is compared:\n"
        yield from (f"- {markdown(line)}" for line in comparison.disagreements)


def _runs(comparison: Comparison) -> Iterator[str]:
    yield "## Runs\n"
    differing = comparison.differing
    yield from table(
        ("run", "id", "made", "trust", *map(markdown, differing)),
        (
            (
                markdown(side.name),
                code(side.plan.run_id),
                f"{side.plan.created:%Y-%m-%d %H:%M}",
                side.trust.value,
                *(markdown(values[number]) or "–" for values in differing.values()),
            )
            for number, side in enumerate(comparison.sides)
        ),
    )
    if not differing:
        yield "\nDevice, versions and commits are the same in all, as far as they are known."


def _pays(comparison: Comparison) -> Iterator[str]:
    yield "## From which length on it pays\n"
    yield from table(
        ("op", "regime", *(markdown(side.heading) for side in comparison.sides), "change"),
        (
            (
                markdown(paid.name.rpartition(" (")[0]),
                paid.regime.value,
                *(markdown(paid.said(number)) for number in range(len(comparison.sides))),
                markdown(change(paid.shifts)),
            )
            for paid in comparison.payments
        ),
    )


def change(shifts: Sequence[PaymentShift]) -> str:
    """What changed in each later run; a dash where nothing did."""
    told = [": ".join(filter(None, (s.change or "", s.why))) for s in shifts]
    return "; ".join(one or "–" for one in told)


def _changes(comparison: Comparison, later: int, name: str) -> Iterator[str]:
    yield f"## Statuses that changed in {markdown(name)}\n"
    changes = comparison.changes(later)
    if not changes:
        yield "None."
        return
    yield from table(
        ("change", "case", "implementation", "before", "after", "reason"),
        (
            (
                str(shift.change),
                markdown(cell.label),
                code(cell.implementation),
                cell.measurements[0].status,
                cell.measurements[later + 1].status,
                markdown(cell.measurements[later + 1].reason or cell.measurements[0].reason),
            )
            for cell, shift in changes[:MOST]
        ),
    )
    yield from _left_out(len(changes))


def _means(comparison: Comparison, later: int, name: str) -> Iterator[str]:
    yield f"## {markdown(name)} against {markdown(comparison.first.name)}\n"
    yield from table(
        ("op", "implementation", "role", "geometric mean", "of cells", "invalid", "cells"),
        (
            (
                markdown(mean.op),
                code(mean.implementation),
                mean.role.value,
                "–" if mean.value is None else f"{mean.value:.3f}",
                str(mean.valid),
                str(mean.invalid),
                counts(mean),
            )
            for mean in comparison.means(later)
        ),
    )


def _slower(comparison: Comparison, later: int, name: str) -> Iterator[str]:
    yield f"### Slower in {markdown(name)}, by the samples: on the device, or in graphs\n"
    slower = sorted(comparison.slower(later), key=lambda pair: pair[1].ratio or 0)
    if not slower:
        yield "No candidate."
        return
    yield from table(
        ("case", "implementation", "ms before", "ms after", "ratio [95 %]"),
        (
            (
                markdown(cell.label),
                code(cell.implementation),
                _ms(cell.measurements[0]),
                _ms(cell.measurements[later + 1]),
                ratio(shift),
            )
            for cell, shift in slower[:MOST]
        ),
    )
    yield from _left_out(len(slower))


def _slower_in_queue(comparison: Comparison, later: int, name: str) -> Iterator[str]:
    yield f"### Slower in {markdown(name)}, called from Python one behind the other\n"
    slower = sorted(comparison.slower_in_queue(later), key=lambda pair: pair[1].ratio or 0)
    if not slower:
        yield f"No candidate, by more than {BAND_IN_QUEUE:.0%}."
        return
    yield from table(
        ("case", "implementation", "ratio [20 and 80 % quantiles]"),
        (
            (markdown(cell.label), code(cell.implementation), ratio(shift))
            for cell, shift in slower[:MOST]
        ),
    )
    yield from _left_out(len(slower))


def _over_many(comparison: Comparison) -> Iterator[str]:
    yield "## Every case in every run\n"
    found = over_many.breakages(comparison)
    yield from (f"- {markdown(one.sentence)}" for one in found)
    yield "\n" if found else "Nothing broke, and nothing got slower.\n"
    yield over_many.MEANS + "\n"
    lines = over_many.lines(comparison)
    yield from table(
        ("case", "candidate", *(markdown(side.heading) for side in comparison.sides)),
        (
            (markdown(one.cell.label), code(one.cell.implementation), *map(markdown, one.texts))
            for one in lines[:MOST]
        ),
    )
    yield from _left_out(len(lines))


def _candidates(comparison: Comparison) -> Iterator[str]:
    """What a version matrix shows: in each run the status, or the speed-up over its baseline."""
    cells = [c for c in comparison.cells if c.role is Role.CANDIDATE]
    yield "## Candidates against the best baseline of each run\n"
    if not cells:
        yield "No candidate takes part."
        return
    yield from table(
        ("case", "candidate", *(markdown(side.heading) for side in comparison.sides)),
        (
            (markdown(cell.label), code(cell.implementation), *map(standing, cell.measurements))
            for cell in cells[:MOST]
        ),
    )
    yield from _left_out(len(cells))


def standing(measurement: Measurement) -> str:
    """`1.23x faster (device)`, or the status that keeps it from having a ratio."""
    if measurement.status != Status.OK or measurement.speedup is None:
        return measurement.status
    said = f"{measurement.speedup:.2f}x {measurement.verdict} ({measurement.regime})"
    return f"{said}, {measurement.caution}" if measurement.caution else said


def _left_out(count: int) -> Iterator[str]:
    if count > MOST:
        yield f"\nand {count - MOST} more: `nsabench compare --json` has them all."


def _ms(measurement: Measurement) -> str:
    return "–" if measurement.median_ms is None else f"{measurement.median_ms:.4g}"
