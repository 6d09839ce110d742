"""Is it right?"""

from __future__ import annotations

from typing import Any

from nsabench.assessment import labels
from nsabench.model.vocabulary import Role, Status
from nsabench.output.report.facts import Facts

ORDER = 40
TITLE = "Parity"
QUESTION = "Is the output right?"
SHOWN = 20


def context(facts: Facts) -> dict[str, Any]:
    rows = [r for r in facts.records if r.role is not Role.CONTROL]
    wrong = [r for r in rows if r.status is Status.WRONG]
    return {
        "any": any(r.mae is not None for r in rows),
        "compared": sum(r.mae is not None for r in rows),
        "wrong": [{**r.row(), "case": labels.case(r)} for r in wrong[:SHOWN]],
        "more": max(len(wrong) - SHOWN, 0),
        "tolerances": sorted(set(facts.tolerances.values())),
    }
