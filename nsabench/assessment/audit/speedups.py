"""Does the speed-up that the table states follow from the times that it states?"""

from __future__ import annotations

from nsabench.assessment.audit.table import Line, Table
from nsabench.assessment.checks import Effect, Finding


def check(table: Table) -> list[Finding]:
    """Rows whose speed-up is not that of the best baseline of the row."""
    column, candidate = table.others.get("speedup"), table.candidate
    if not column or not candidate or not table.baselines:
        return []
    findings = []
    for line in table.lines:
        stated, mine = line.value(column), table.time_ms(line, candidate)
        theirs = [(table.time_ms(line, b), b) for b in table.baselines]
        timed = [(time, b) for time, b in theirs if time is not None]
        if stated is None or mine is None or not timed:
            continue
        best, baseline = min(timed)
        slack = _rounding(line, column) / max(stated, 1e-9)
        slack += _rounding(line, candidate) / mine * table.times[candidate]
        slack += _rounding(line, baseline) / best * table.times[baseline]
        if abs(stated / (best / mine) - 1) > slack + 0.01:
            sentence = (
                f"the stated speed-up of {stated:g} is not that of the stated times: "
                f"{baseline} {best:g} ms over {candidate} {mine:g} ms is {best / mine:.2f}"
            )
            findings.append(
                Finding("speedup", Effect.WRONG, sentence, table.label(line), candidate)
            )
    return findings


def _rounding(line: Line, column: str) -> float:
    """Half a unit in the last digit that is written."""
    digits, _, exponent = line.cells[column].strip().lower().partition("e")
    decimals = len(digits.partition(".")[2])
    return float(0.5 * 10.0 ** (int(exponent or 0) - decimals))
