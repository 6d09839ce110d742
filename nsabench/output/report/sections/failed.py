"""What failed, and how?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nsabench.assessment import labels
from nsabench.model.vocabulary import Role, Status
from nsabench.output.report.facts import Facts

ORDER = 50
TITLE = "Failures"
QUESTION = "What failed, and how?"
SHOWN = 30  # log excerpts; the whole logs lie in the run's folder


def context(facts: Facts) -> dict[str, Any]:
    counts = Counter(
        (r.implementation, r.role, r.status) for r in facts.records if r.role is not Role.CONTROL
    )
    names = list(dict.fromkeys((name, role) for name, role, _ in counts))
    statuses = [s for s in Status if any(status == s for _, _, status in counts)]
    excerpts = [
        {**r.row(), "case": labels.case(r), "log": facts.log(r.case_id, r.implementation)}
        for r in facts.grave[:SHOWN]
    ]
    return {
        "statuses": statuses,
        "table": [
            (name, role, [counts[name, role, status] for status in statuses])
            for name, role in names
        ],
        "grave": excerpts,
        "more": max(len(facts.grave) - SHOWN, 0),
        "reasons": Counter((r.status, r.reason) for r in facts.failed).most_common(20),
    }
