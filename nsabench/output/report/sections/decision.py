"""What was decided, and can I trust it?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nsabench.assessment import checks
from nsabench.assessment.checks import Effect
from nsabench.assessment.checks.controls import CHECK
from nsabench.assessment.failures import found_while_measuring
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch
from nsabench.output.report.facts import Facts, standings
from nsabench.output.report.meanings import first_line

ORDER = 10
TITLE = "Decision"
QUESTION = "What was decided, and can I trust it?"


def context(facts: Facts) -> dict[str, Any]:
    return {
        "standings": standings(facts),
        "controls": _controls(facts),
        "missed": [r for r in facts.controls if r.caught is Catch.MISSED],
        "checks": _checks(facts),
        "ceilings": facts.ceilings,
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


def _checks(facts: Facts) -> list[dict[str, Any]]:
    """One line a check: what it asks, and how many findings of which effect it had. What it finds
    in a control it was meant to find, and is counted apart."""
    controls = {r.key for r in facts.controls}
    findings = [*facts.results.findings, *found_while_measuring(facts.results)]
    lines = []
    for name in [*checks.all_checks(), CHECK]:
        own = [f for f in findings if f.check == name]
        expected = [f for f in own if (f.case_id, f.implementation) in controls]
        others = [f for f in own if f not in expected]
        counts = Counter(f.effect for f in others)
        lines.append(
            {
                "name": name,
                # "Roofline: no time below ..." stands beside the name already.
                "asks": first_line(f"nsabench.assessment.checks.{name}").partition(": ")[2],
                "counts": [(effect.value, counts[effect]) for effect in Effect if counts[effect]],
                "in_controls": len(expected),
                "examples": others[:3],
            }
        )
    return lines
