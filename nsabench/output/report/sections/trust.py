"""Can it be trusted?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nsabench.assessment import checks
from nsabench.assessment.checks import Effect
from nsabench.assessment.checks.controls import CHECK
from nsabench.assessment.failures import found_while_measuring
from nsabench.output.report.facts import Facts
from nsabench.output.report.meanings import first_line

ORDER = 55
TITLE = "Trust"
QUESTION = "Can it be trusted?"


def context(facts: Facts) -> dict[str, Any]:
    return {"checks": _checks(facts), "ceilings": facts.ceilings}


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
