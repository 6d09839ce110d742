"""A comparison as JSON for programs. Fields are only ever added."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from nsabench.output.compare import over_many
from nsabench.output.compare.comparison import Comparison
from nsabench.output.compare.payments import ComparedPayment


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
                "op": found.op,
                "implementation": found.implementation,
                "run": found.run,
                "change": found.change,
                "statuses": list(found.statuses),
                "cases": [cell.planned.id for cell in found.cells],
            }
            for found in over_many.breakages(comparison)
        ],
        "means": [
            {"run": side.name, **asdict(mean)}
            for later, side in enumerate(comparison.later)
            for mean in comparison.means(later)
        ],
        "pays": [_payment(paid) for paid in comparison.payments],
        "cells": [
            {
                "case_id": cell.planned.id,
                "case": cell.label,
                "op": cell.case.op,
                "implementation": cell.implementation,
                "role": cell.role,
                "runs": [asdict(measurement) for measurement in cell.measurements],
                "later": [asdict(shift) for shift in cell.shifts],
            }
            for cell in comparison.cells
        ],
    }


def _payment(paid: ComparedPayment) -> dict[str, Any]:
    return {
        "op": paid.op,
        "heads": paid.heads,
        "direction": paid.direction,
        "regime": paid.regime,
        "runs": [
            {"answer": p.answer, "from": p.length, "axis": p.axis} if p else None
            for p in paid.answers
        ],
        "later": [asdict(shift) for shift in paid.shifts],
    }
