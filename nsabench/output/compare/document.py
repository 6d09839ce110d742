"""A comparison as JSON for programs. Fields are only ever added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nsabench.output.compare import over_many
from nsabench.output.compare.comparison import Comparison


def as_data(comparison: Comparison) -> dict[str, Any]:
    """Ratios are time in the first run / time in the later one; times in ms."""
    return {
        "band": comparison.band,
        "disagreements": list(comparison.disagreements),
        "runs": [
            {
                "name": side.name,
                "run_id": side.plan.run_id,
                "created": side.plan.created.isoformat(),
                "trust": side.trust.value,
                "objection": side.objection,
                "versions": side.versions,
                "unpaired": side.unpaired,
            }
            for side in comparison.sides
        ],
        "breakages": [
            {
                "op": one.op,
                "implementation": one.implementation,
                "run": one.run,
                "change": one.change and one.change.value,
                "statuses": list(one.statuses),
                "cases": [cell.planned.id for cell in one.cells],
                "stays": one.stay,
            }
            for one in over_many.breakages(comparison)
        ],
        "means": [
            {"run": side.name, **asdict(mean)}
            for later, side in enumerate(comparison.later)
            for mean in comparison.means(later)
        ],
        "pays": [
            {
                "op": paid.op,
                "heads": paid.heads,
                "direction": paid.direction.value,
                "regime": paid.regime.value,
                "runs": [
                    {"answer": p.answer.value, "from": p.length, "axis": p.axis} if p else None
                    for p in paid.answers
                ],
                "later": [
                    {"change": s.change and s.change.value, "why": s.why, "cases": list(s.cases)}
                    for s in paid.shifts
                ],
            }
            for paid in comparison.payments
        ],
        "cells": [
            {
                "case_id": cell.planned.id,
                "case": cell.label,
                "op": cell.case.op,
                "implementation": cell.implementation,
                "role": cell.role.value,
                "runs": [asdict(measurement) for measurement in cell.measurements],
                "later": [asdict(shift) for shift in cell.shifts],
            }
            for cell in comparison.cells
        ],
    }
