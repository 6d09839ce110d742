"""Where is the candidate faster?"""

from __future__ import annotations

from typing import Any

from nsabench.output.report.facts import Facts
from nsabench.output.report.statistics import by_length

ORDER = 20
TITLE = "Speed-up"
QUESTION = "Where is the candidate faster than the best valid baseline?"


def context(facts: Facts) -> dict[str, Any]:
    return {
        "any": any(r.speedup is not None for r in facts.candidates),
        "ranges": by_length(facts),
        "margin": facts.plan.margin,
        "why_not": sorted({r.reason for r in facts.candidates if r.speedup is None}),
    }
