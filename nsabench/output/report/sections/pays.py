"""From which length on does it pay?"""

from __future__ import annotations

from typing import Any

from nsabench.output.report.facts import Facts
from nsabench.output.report.payment_chart import charts

ORDER = 15
TITLE = "Pays"
QUESTION = "From which length on is it faster than what a model could run instead?"


def applies(facts: Facts) -> bool:
    """Only where alternatives ran."""
    return bool(facts.payments)


def context(facts: Facts) -> dict[str, Any]:
    return {"payments": facts.payments, "charts": charts(facts.payments, facts.records)}
