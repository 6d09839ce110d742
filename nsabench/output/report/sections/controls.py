"""What was wrong on purpose, and was it caught?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch
from nsabench.output.report.facts import Facts

ORDER = 80
TITLE = "Controls"
QUESTION = "What was wrong on purpose, and was it caught?"


def context(facts: Facts) -> dict[str, Any]:
    counts = Counter(r.caught for r in facts.controls)
    return {
        "controls": _controls(facts),
        "missed": [r for r in facts.controls if r.caught is Catch.MISSED],
        "tally": ", ".join(f"{counts[word]} {word}" for word in Catch if counts[word]),
    }


def _controls(facts: Facts) -> list[dict[str, Any]]:
    """One line a control: what was meant to catch it, and what became of it."""
    groups: dict[tuple[str, str], list[Record]] = {}
    for record in facts.controls:
        groups.setdefault((record.op, record.implementation), []).append(record)
    return [
        {
            "op": op,
            "name": name,
            "caught_by": rows[0].caught_by,
            "became": sorted(Counter(r.caught for r in rows).items()),
            "evidence": next((r.diagnosis or r.reason for r in rows if r.reason), ""),
        }
        for (op, name), rows in groups.items()
    ]
