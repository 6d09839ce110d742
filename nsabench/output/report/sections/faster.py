"""Where is the candidate faster?"""

from __future__ import annotations

from typing import Any

from nsabench.assessment import labels
from nsabench.assessment.caution import beside
from nsabench.output.report.facts import Facts
from nsabench.output.report.statistics import by_length

ORDER = 20
TITLE = "Speed-up"
QUESTION = "Where is the candidate faster than the best valid baseline?"


def context(facts: Facts) -> dict[str, Any]:
    return {
        "any": any(r.speedup is not None for r in facts.candidates),
        "ranges": by_length(facts),
        "cautions": sorted({said for r in facts.candidates if (said := beside(r, r.regime))}),
        "margin": facts.plan.margin,
        "constant": {op: words for op, words in _constant(facts).items() if words},
        "several": len({r.op for r in facts.candidates}) > 1,
        "why_not": sorted({r.reason for r in facts.candidates if r.speedup is None}),
    }


def _constant(facts: Facts) -> dict[str, list[str]]:
    """What the labels of cases leave out, by op: it is the same in all of them."""
    return labels.constant(facts.records)
