"""What was decided?"""

from __future__ import annotations

from collections import Counter
from typing import Any

from nsabench.assessment.pays import CALLED
from nsabench.model.vocabulary import Catch
from nsabench.output.report.facts import Facts, standings

ORDER = 10
TITLE = "Decision"
QUESTION = "Is it right, is it faster, and from where on?"


def context(facts: Facts) -> dict[str, Any]:
    counts = Counter(r.caught for r in facts.controls if r.caught)
    tally = ", ".join(f"{counts[word]} {word}" for word in Catch if counts[word])
    return {
        "standings": standings(facts),
        "pays": pays(facts),
        "controls": f"controls {tally}" if tally else "no control took part",
    }


def pays(facts: Facts) -> dict[str, Any]:
    """A line an op, head layout and direction, a column a regime: what a model team asks first."""
    told = {p.regime for p in facts.payments}
    regimes = [(regime, called) for regime, called in CALLED.items() if regime in told]
    rows: dict[tuple[str, str, str], dict[str, Any]] = {}
    for p in facts.payments:
        rows.setdefault((p.op, p.heads, p.direction), {})[p.regime] = p
    return {
        "regimes": regimes,
        "rows": [
            {
                "op": op,
                "heads": heads,
                "direction": direction,
                "by_regime": [of_one.get(regime) for regime, _ in regimes],
            }
            for (op, heads, direction), of_one in rows.items()
        ],
    }
