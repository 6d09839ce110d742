"""What one run decides: the same wherever it is shown.

A `thresholds.yaml` that another version wrote, and somebody signed, may say otherwise. It is left
as it is, and what shows a decision says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nsabench.model.plan import Plan
from nsabench.model.record import Record
from nsabench.model.vocabulary import MARGIN, Regime
from nsabench.verdicts.threshold.decide import Decision, decide_all
from nsabench.verdicts.threshold.document import decided_with, read
from nsabench.verdicts.threshold.evidence import of_records

THRESHOLDS = "thresholds.yaml"


def decide_run(records: Sequence[Record], plan: Plan) -> list[Decision]:
    """The decisions of one run, for the margin that it was made for."""
    return decide_all([of_records(records, plan)], plan.margin)


def decide_records(records: Sequence[Record]) -> list[Decision]:
    """The same of a run of which only the records are there, for the usual margin."""
    return decide_all([of_records(records)], MARGIN)


def said_otherwise(folder: Path, plan: Plan, decisions: Sequence[Decision]) -> str:
    """Where the run's `thresholds.yaml` does not say what is decided of the run here: which version
    wrote it, and what it says. Empty where there is none, or it says the same."""
    try:
        content = read(folder / THRESHOLDS)
    except (OSError, ValueError):
        return ""
    if not isinstance(content, dict):
        return ""
    before = {_of(d): d["min_L"] for d in content.get("decisions", [])}
    now = {(d.gpu, d.combo, d.op, d.regime, d.candidate): d.min_length for d in decisions}
    other = [(who, length) for who, length in before.items() if now.get(who, "") != length]
    lacking = sorted({_who(key) for key in now.keys() - before.keys()})
    if not other and not lacking:
        return ""
    says = [
        f"{_who(key)} {'never' if length is None else f'from {length} on'}" for key, length in other
    ]
    margins = {d["margin"] for d in content["decisions"]} - {plan.margin}
    at = "".join(f" for the margin {margin:g}," for margin in sorted(margins))
    parts = [f"it says{at} {', '.join(says)}"] if says else []
    parts += [f"it says nothing of {', '.join(lacking)}"] if lacking else []
    return (
        f"the run's {THRESHOLDS} was decided by {content['decided_with']}, and not as by "
        f"this one, {decided_with()}: {'; '.join(parts)}"
    )


_Key = tuple[str, str, str, Regime, str]


def _of(d: dict[str, Any]) -> _Key:
    return d["gpu"], d["combo"], d["op"], Regime(d["regime"]), d["candidate"]


def _who(key: _Key) -> str:
    _, _, op, regime, name = key
    return f"{name} ({op})" + ("" if regime is Regime.DEVICE else f" in the regime {regime}")
