"""Estimate the time and the memory of a plan before anything is measured."""

from __future__ import annotations

from dataclasses import dataclass

from rich.filesize import decimal

from nsabench import labels, ops
from nsabench.errors import UsageError
from nsabench.model.plan import Device, Plan, PlannedCase
from nsabench.planning.shards import estimate_s


@dataclass(frozen=True)
class Estimate:
    seconds: float  # about
    bytes: int  # at least, since all sets of inputs are in memory at once


def of_plan(plan: Plan) -> dict[str, Estimate]:
    return {planned.id: of_case(planned, plan.device) for planned in plan.cases}


def of_case(planned: PlannedCase, device: Device) -> Estimate:
    case = planned.case
    return Estimate(
        min(estimate_s(planned, device), case.timeout_s * len(planned.implementations)),
        2 * ops.work(case).bytes_min,
    )


def refuse_unfitting(plan: Plan, memory: int | None) -> None:
    """Raise `UsageError` for cases that need more bytes than the memory; None: unknown."""
    if memory is None:
        return
    needs = {case_id: estimate.bytes for case_id, estimate in of_plan(plan).items()}
    over = [planned for planned in plan.cases if needs[planned.id] > memory]
    if over:
        worst = max(over, key=lambda planned: needs[planned.id])
        more = f" (the most of {len(over)} cases)" if len(over) > 1 else ""
        raise UsageError(
            f"{labels.named(worst.case)} takes at least {decimal(needs[worst.id])}{more}, "
            f"and there are {decimal(memory)}",
            "leave them out with --where, or make them smaller.",
        )


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
