"""Estimate the time and the memory of a plan before anything is measured."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from nsabench import labels, ops
from nsabench.errors import UsageError
from nsabench.model.case import FixedCount, Stopping
from nsabench.model.plan import Device, Plan, PlannedCase

# Seconds for each implementation of a case besides its samples, as in runs on an H200 and on two
# cores. The first compilation of a kernel is extra.
BESIDE_S = {"cuda": 0.3, "cpu": 0.8}
ROUND_S = 0.02
# Calls of an implementation besides its samples, and the rate of dense attention on an H200.
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
    seconds = _sampling_s(case.timing.stopping) + BESIDE_S[device] * len(planned.implementations)
    if device == "cuda":
        works = [
            ops.computed_work(case, computes.get(name, "")) for name in planned.implementations
        ]
        seconds += CALLS * sum(work.flops for work in works) / FLOP_S
    return Estimate(
        min(seconds, case.timeout_s * len(planned.implementations)),
        max(2, case.streams) * ops.work(case).bytes_min,
    )


def _sampling_s(stopping: Stopping) -> float:
    if isinstance(stopping, FixedCount):
        return stopping.rounds * ROUND_S
    return stopping.budget_s


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
