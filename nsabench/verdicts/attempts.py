"""The state of a case after the attempts to measure it, and the next attempt.

Both depend on the attempts alone. `verdicts.blame` finds the implementation that ended a worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsabench.model.log import Log
from nsabench.model.measurement import Conditions, Observation
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Mode, Purpose, Runs, Status
from nsabench.verdicts.blame import NONE, BlameTrial, NextAttempt


@dataclass(frozen=True)
class CaseState:
    purpose: Purpose
    case_id: str
    observations: list[Observation]  # of settled implementations, in the order of the plan
    conditions: dict[int, Conditions]  # by attempt
    attempts: int = 0  # made so far
    wall_s: float = 0.0
    reason: str = ""  # why the pass gave the case up
    next: NextAttempt | None = None  # None once all is settled


def state_of(
    plan: Plan, log: Log, purpose: Purpose, planned: PlannedCase, names: Sequence[str] = ()
) -> CaseState:
    """Return the state of a case in a pass. names: those to measure if nothing was attempted."""
    attempts = log.attempts_of(purpose, planned.id)
    if purpose is Purpose.MAIN:
        names = planned.implementations
    elif attempts:
        names = attempts[0].job.implementations
    skipped = {name: reason for name in names if (reason := cannot_run(plan, planned, name))}
    left = [name for name in names if name not in skipped]
    trial = BlameTrial(purpose, left)
    for attempt in attempts:
        trial.take(attempt)
    settled = trial.settled | {
        name: Observation(implementation=name, status=Status.SKIPPED, reason=reason)
        for name, reason in skipped.items()
    }
    # Renumbered, so that attempts that did not count do not show in the tables.
    counted = sorted({observation.attempt for observation in settled.values()} - {NONE})
    numbers = {attempt: number for number, attempt in enumerate(counted, 1)} | {NONE: NONE}
    return CaseState(
        purpose=purpose,
        case_id=planned.id,
        observations=[
            settled[name].model_copy(update={"attempt": numbers[settled[name].attempt]})
            for name in names
            if name in settled
        ],
        conditions={numbers[attempt]: trial.conditions[attempt] for attempt in counted},
        attempts=len(attempts),
        wall_s=sum(a.ended.wall_s for a in attempts if a.ended is not None),
        reason=trial.gave_up,
        next=trial.next,
    )


def states_of(plan: Plan, log: Log, purpose: Purpose) -> dict[str, CaseState]:
    canary = [plan.canary] if plan.canary is not None else []
    states = {}
    for planned in canary if purpose is Purpose.CANARY else plan.cases:
        # A case that nothing can run on this device is settled without an attempt.
        if purpose is Purpose.MAIN or log.attempts_of(purpose, planned.id):
            state = state_of(plan, log, purpose, planned)
            if state.next is None:
                states[planned.id] = state
    return states


def cannot_run(plan: Plan, planned: PlannedCase, name: str) -> str:
    """Return why an implementation cannot run on the device of the plan, or an empty text."""
    case, devices = planned.case, plan.info(planned.case.op, name).devices
    if plan.device == "cpu":
        if Runs.CPU not in devices and Runs.INTERPRETER not in devices:
            return f"runs only on {' and '.join(devices)}; this run is on the CPU"
        if case.timing.mode is Mode.GRAPH:
            return "CUDA graphs exist only on CUDA devices"
    elif Runs.CUDA not in devices:
        return f"runs only on {' and '.join(devices)}; this run is on a CUDA device"
    return ""
