"""Tables of a decode step: parts that cost as much as the whole, counts that never change."""

from __future__ import annotations

from collections.abc import Iterator

from nsabench.assessment.audit.table import Table, name_of
from nsabench.assessment.checks import Effect, Finding

CHECK = "decode"
TOTALS = ("total", "all", "step")
AS_MUCH_AS = 0.9  # of the total: a branch that takes more has run the other branches too
GROWTH = 2.0


def check(table: Table) -> list[Finding]:
    """Findings about the branches and the read counts, where the table has such columns."""
    return [*_branches(table), *_counts(table)]


def _branches(table: Table) -> Iterator[Finding]:
    total = next((c for c in table.times if name_of(c).lower() in TOTALS), None)
    parts = [c for c in table.times if c != total]
    if total is None or len(parts) < 2:
        return
    for line in table.lines:
        whole = table.time_ms(line, total)
        times = {c: t for c in parts if (t := table.time_ms(line, c)) is not None}
        if whole is None or len(times) < 2 or min(times.values()) < AS_MUCH_AS * whole:
            continue
        names = ", ".join(f"{name_of(c)} {t:g}" for c, t in times.items())
        sentence = (
            f"each branch costs as much as the total of {whole:g} ms ({names}; together "
            f"{sum(times.values()):g}): whatever was switched off ran all the same"
        )
        yield Finding(CHECK, Effect.IMPLAUSIBLE, sentence, table.label(line))


def _counts(table: Table) -> Iterator[Finding]:
    axis = next((c for c in table.columns if c not in table.times), None)
    for column in table.columns:
        if not column.endswith("_actual") or axis is None:
            continue
        counted = [(line, a) for line in table.lines if (a := line.value(column)) is not None]
        values = {a for _, a in counted}
        sizes = [v for line, _ in counted if (v := line.value(axis))]
        expected = f"{column.removesuffix('_actual')}_expected"
        if len(values) == 1 and len(sizes) > 1 and max(sizes) >= GROWTH * min(sizes):
            [value] = values
            sentence = (
                f"{column} is {value:g} in every row while {axis} grows from {min(sizes):g} "
                f"to {max(sizes):g}: it was not counted, or counts something else"
            )
            yield Finding(CHECK, Effect.IMPLAUSIBLE, sentence)
        off = [
            (line, a, e)
            for line, a in counted
            if (e := line.value(expected)) is not None and a != e
        ]
        if off:
            line, a, e = max(off, key=lambda o: abs(o[1] / o[2] - 1) if o[2] else 0)
            sentence = (
                f"{column} differs from {expected} in {len(off)} of {len(table.lines)} rows, "
                f"most at {table.label(line)}: {a:g} against {e:g}"
            )
            yield Finding(CHECK, Effect.WRONG, sentence)
