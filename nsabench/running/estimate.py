"""Estimate the time and the memory of a plan before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nsabench import labels, ops
from nsabench.errors import UsageError
from nsabench.model.plan import Device, Plan, PlannedCase
from nsabench.planning.shards import estimate_s

# Calls of an alternative besides its samples, and the rate of dense attention on an H200.
CALLS, FLOP_S = 20, 4e14


@dataclass(frozen=True)
class Estimate:
    seconds: float  # about
    bytes: int  # at least, since all sets of inputs are in memory at once


def of_plan(plan: Plan) -> dict[str, Estimate]:
    computes = {(i.op, i.name): i.computes for i in plan.implementations if i.computes}
    return {
        planned.id: of_case(
            planned,
            plan.device,
            {name: dense for (op, name), dense in computes.items() if op == planned.case.op},
        )
        for planned in plan.cases
    }


def of_case(
    planned: PlannedCase, device: Device, computes: Mapping[str, str] = MappingProxyType({})
) -> Estimate:
    """computes: the op that an alternative computes, by its name."""
    case = planned.case
    seconds = estimate_s(planned, device)
    if device == "cuda":
        dense = [computes[name] for name in planned.implementations if name in computes]
        seconds += CALLS * sum(ops.computed_work(case, op).flops for op in dense) / FLOP_S
    return Estimate(
        min(seconds, case.timeout_s * len(planned.implementations)),
        max(2, case.streams) * ops.work(case).bytes_min,
    )


def refuse_unfitting(plan: Plan, memory: int | None) -> None:
    """Raise `UsageError` for cases that need more bytes than the memory; None: unknown."""
    if memory is None:
        return
    needs = {case_id: estimate.bytes for case_id, estimate in of_plan(plan).items()}
    over = [planned for planned in plan.cases if needs[planned.id] > memory]
    if over:
        worst = max(over, key=lambda planned: needs[planned.id])
        more = {1: "", 2: ", and so does another"}.get(
            len(over), f", and so do {len(over) - 1} others"
        )
        raise UsageError(
            f"{labels.named(worst.case)} takes at least {gigabytes(needs[worst.id])}{more}, "
            f"and there are {gigabytes(memory)}",
            "leave them out with --where, or make them smaller.",
        )


def gigabytes(count: int) -> str:
    """Return a size such as 3.4 TB, 12 GB or 0.5 MB."""
    for unit, size in (("TB", 1e12), ("GB", 1e9), ("MB", 1e6)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count / 1e3:.3g} kB"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
