"""What is known of a case after the attempts to measure it, and what to attempt next.

Both follow from the attempts alone, so a run that was interrupted goes on as if it had not been.
`verdicts.blame` says which implementation is blamed for a dead worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from nsabench.model.log import Log
from nsabench.model.measurement import Conditions, Observation
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Mode, Purpose, Runs, Status
from nsabench.verdicts.blame import NONE, NextAttempt, Replay


@dataclass(frozen=True)
class CaseState:
    """What is known of a case in one pass.

    observations: of the implementations that are settled, in the order of the plan. conditions: the
    state of the device in the attempts that these come from. attempts: made so far. wall_s: that
    they took. reason: why the pass gave the case up, if it did. next: None once all is settled.
    """

    purpose: Purpose
    case_id: str
    observations: list[Observation]
    conditions: dict[int, Conditions]
    attempts: int = 0
    wall_s: float = 0.0
    reason: str = ""
    next: NextAttempt | None = None


def state_of(
    plan: Plan, log: Log, purpose: Purpose, planned: PlannedCase, names: Sequence[str] = ()
) -> CaseState:
    """Return the state of a case in a pass.

    names: the implementations that the pass measures, where nothing was attempted yet.
    """
    attempts = log.attempts_of(purpose, planned.id)
    if purpose is Purpose.MAIN:
        names = planned.implementations
    elif attempts:
        names = attempts[0].job.implementations
    skipped = {name: reason for name in names if (reason := cannot_run(plan, planned, name))}
    left = [name for name in names if name not in skipped]
    replay = Replay(purpose, left, planned.case.timeout_s)
    for attempt in attempts:
        replay.take(attempt)
    settled = replay.settled | {
        name: Observation(implementation=name, status=Status.SKIPPED, reason=reason)
        for name, reason in skipped.items()
    }
    # Numbered anew, so that an attempt that did not count leaves no trace in a table.
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
        conditions={numbers[attempt]: replay.conditions[attempt] for attempt in counted},
        attempts=len(attempts),
        wall_s=sum(one.ended.wall_s for one in attempts if one.ended is not None),
        reason=replay.gave_up,
        next=replay.next,
    )


def states_of(plan: Plan, log: Log, purpose: Purpose) -> dict[str, CaseState]:
    """Return the states of the cases that are settled in a pass, by case id."""
    canary = [plan.canary] if plan.canary is not None else []
    found = {}
    for planned in canary if purpose is Purpose.CANARY else plan.cases:
        # A case that nothing can run on this device is settled without an attempt.
        if purpose is Purpose.MAIN or log.attempts_of(purpose, planned.id):
            state = state_of(plan, log, purpose, planned)
            if state.next is None:
                found[planned.id] = state
    return found


def cannot_run(plan: Plan, planned: PlannedCase, name: str) -> str:
    """Why the device of the plan is none that an implementation runs on; empty if it is."""
    case, devices = planned.case, plan.info(planned.case.op, name).devices
    if plan.device == "cpu":
        if Runs.CPU not in devices and Runs.INTERPRETER not in devices:
            return f"runs only on {' and '.join(devices)}; this run is on the CPU"
        if case.streams > 1:
            return "streams exist only on CUDA devices"
        if case.timing.mode is Mode.GRAPH:
            return "CUDA graphs exist only on CUDA devices"
    elif Runs.CUDA not in devices:
        return f"runs only on {' and '.join(devices)}; this run is on a CUDA device"
    return ""
