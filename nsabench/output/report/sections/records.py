"""Everything that was measured."""

from __future__ import annotations

from typing import Any

from nsabench.output.report.facts import Facts

ORDER = 70
TITLE = "Records"
QUESTION = "Everything that was measured"


def context(facts: Facts) -> dict[str, Any]:
    return {"count": len(facts.records)}
