"""The judge that mutants come before is the product's own: a worker measures, the checks decide."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from functools import cache

from nsabench import registry
from nsabench.model.case import Case
from nsabench.model.description import Described
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.record import Record
from nsabench.model.vocabulary import Purpose, Role, Runs
from nsabench.registry import Implementation
from nsabench.verdicts.results import assess
from nsabench.worker.timing.timer import CpuTimer
from tests.checker.mutants.mutant import Kernel
from tests.checking import measured as measured_by_checker
from tests.checking import registered
from tests.runs import add_attempt, log_of

WHEN = datetime(2026, 1, 1, tzinfo=UTC)


@cache
def shipped() -> tuple[Implementation, ...]:
    """All that ships, and the kernels that are installed beside it."""
    return tuple(registry.load())


def baselines(case: Case) -> list[Implementation]:
    """Return the baselines that run on a CPU and compute the op's function in this case."""
    return [
        item
        for item in shipped()
        if item.op == case.op
        and item.role is Role.BASELINE
        and Runs.CPU in item.devices
        and item.concerns(case)
    ]


def as_candidate(op: str, name: str, kernel: Kernel) -> Implementation:
    return registered(op, name, kernel)


def judge(case: Case, items: list[Implementation]) -> Mapping[str, Record]:
    """What becomes of each of the items, measured together."""
    measured = measured_by_checker(case, items, timer=CpuTimer(), probes=True)
    plan = Plan(
        run_id="mutants",
        created=WHEN,
        device="cpu",
        matrices=[],
        implementations=list(items),
        cases=[
            PlannedCase(id=case.id, case=case, implementations=tuple(item.name for item in items))
        ],
    )
    log = log_of(plan, described=Described(software={}, device={"type": "cpu"}))
    add_attempt(log, plan, Purpose.MAIN, case.id, measured.observations)
    records = assess(plan, log).results().records
    return {record.implementation: record for record in records}
