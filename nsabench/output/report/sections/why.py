"""Why is it faster or slower?"""

from __future__ import annotations

from typing import Any

from nsabench.output.report.facts import Facts

ORDER = 30
TITLE = "Time"
QUESTION = "Why: how far is each implementation from what the device can do?"


def context(facts: Facts) -> dict[str, Any]:
    return {
        "any": any(r.median_ms is not None for r in facts.records),
        "ceilings": facts.ceilings,
    }
