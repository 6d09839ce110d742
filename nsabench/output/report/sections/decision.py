"""What was decided?"""

from __future__ import annotations

from collections import Counter
from typing import Any

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
        "controls": f"controls {tally}" if tally else "no control took part",
    }
