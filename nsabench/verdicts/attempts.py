"""Replay the attempts at a case, to find what they have settled and what to measure next.

If a worker dies, the implementation that it named last is the suspect, but foreign code can forge
that name. So the main pass measures each implementation alone, the suspect first. An implementation
whose worker dies again is blamed, and the others are measured together again. If all survive alone,
these results count. The isolated pass blames the suspect. Confirmation and canary give the case up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from nsabench.errors import UsageError
from nsabench.machine.environment.nvml import POWER_CAP, THROTTLING
from nsabench.model.job import Death
from nsabench.model.log import Attempt, Log
from nsabench.model.measurement import Conditions, Observation
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Mode, Purpose, Runs, Status

# Phases before the first call of an implementation.
BEFORE_ANY = "inputs"
EARLY = (BEFORE_ANY, "request", "start")
COOL_DOWN_S = 5.0
REPEAT_AFTER = THROTTLING - {POWER_CAP}  # a pause does not end a power cap
# If the sandbox blocks signals, no kernel can kill the measuring process, but a person or a
# scheduler can. So up to this many kills in a row are blamed on no implementation.
FORGIVEN = 2
SIGNALS = "signals"  # `Attempt.sandbox` contains this word if the sandbox blocks signals
NONE = 0  # the number of the attempt if no worker measured an implementation to the end


@dataclass(frozen=True)
class NextAttempt:
    implementations: tuple[str, ...]
    pause_s: float = 0.0  # the pause before the attempt


@dataclass(frozen=True)
class CaseState:
    purpose: Purpose
    case_id: str
    observations: list[Observation]  # of settled implementations, in the order of the plan
    conditions: dict[int, Conditions]  # by the number of the attempt
    attempts: int = 0  # how many were made so far
    wall_s: float = 0.0
    reason: str = ""  # why the pass gave the case up
    next: NextAttempt | None = None  # None once all is settled


def state_of(
    plan: Plan, log: Log, purpose: Purpose, planned: PlannedCase, names: Sequence[str] = ()
) -> CaseState:
    """Return the state of a case in a pass. A later pass without attempts measures `names`."""
    attempts = log.attempts_of(purpose, planned.id)
    if purpose is Purpose.MAIN:
        names = planned.implementations
    elif attempts:
        names = attempts[0].job.implementations
    skipped = {name: reason for name in names if (reason := cannot_run(plan, planned, name))}
    left = [name for name in names if name not in skipped]
    trial = AttemptReplay(purpose, left)
    for attempt in attempts:
        trial.take(attempt)
    settled = trial.settled | {
        name: Observation(implementation=name, status=Status.SKIPPED, reason=reason)
        for name, reason in skipped.items()
    }
    # Attempts are renumbered, so that those that did not count do not show in the tables.
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
        # A case that no implementation can run on this device needs no attempt to be settled.
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


@dataclass
class _SoloTrials:
    """Trials of implementations alone, after a worker that measured all of them died."""

    death: Death
    order: list[str]
    survived: dict[str, Observation] = field(default_factory=dict)


class AttemptReplay:
    """Takes the attempts in order and says what is settled, and what to measure next."""

    def __init__(self, purpose: Purpose, names: Sequence[str]) -> None:
        self.settled: dict[str, Observation] = {}
        self.conditions: dict[int, Conditions] = {}
        self.gave_up = ""
        self._purpose = purpose
        self._left = list(names)
        self._killed = 0  # times in a row that the measuring process was killed
        self._lost_early = ""  # why the last worker was lost before any call
        self._was_throttled = False
        self._solo: _SoloTrials | None = None

    @property
    def next(self) -> NextAttempt | None:
        if self.gave_up or not self._left:
            return None
        pause_s = COOL_DOWN_S if self._was_throttled else 0.0
        if self._solo is None:
            return NextAttempt(tuple(self._left), pause_s=pause_s)
        return NextAttempt((self._untried[0],), pause_s)

    @property
    def _untried(self) -> list[str]:
        assert self._solo is not None
        return [n for n in self._solo.order if n in self._left and n not in self._solo.survived]

    def take(self, attempt: Attempt) -> None:
        ended, due = attempt.ended, self.next
        if ended is not None and ended.interrupted:
            return
        if due is None or attempt.job.implementations != due.implementations:
            raise UsageError(
                f"attempt {attempt.job.attempt} of the {self._purpose} pass over case "
                f"{attempt.job.case.id} does not follow from those before it",
                "the log was altered: start a new run.",
            )
        if ended is None:
            self._killed += 1
            if self._killed > (FORGIVEN if SIGNALS in attempt.sandbox else 0):
                death = _death_of_nsabench(attempt, self._killed)
                self._killed = 0
                self._die(attempt, death)
            return
        self._killed = 0
        if ended.death is not None:
            self._die(attempt, ended.death)
        else:
            self._settle_or_repeat(attempt, ended.conditions)

    def _settle_or_repeat(self, attempt: Attempt, conditions: Conditions) -> None:
        self.conditions[attempt.job.attempt] = conditions
        if REPEAT_AFTER & set(conditions.clock_event_reasons) and not self._was_throttled:
            self._was_throttled = True
            return
        notes = []
        if self._was_throttled:
            notes.append("measured twice: the device was throttled the first time")
        if self._lost_early:
            notes.append(f"measured again, since a worker died before any call: {self._lost_early}")
        self._was_throttled, self._lost_early = False, ""
        observations = [_add_notes(observation, notes) for observation in attempt.observations]
        if self._solo is None:
            self._settle(observations)
            return
        self._solo.survived |= {o.implementation: o for o in observations}
        self._end_solo_trials()

    def _die(self, attempt: Attempt, death: Death) -> None:
        if death.phase in EARLY and not self._lost_early:
            # Try once more: a thread that an earlier case left behind may have ended the worker.
            self._lost_early = death.reason
            return
        if self._purpose is Purpose.MAIN:
            self._find_culprit(attempt, death)
        elif self._purpose is Purpose.ISOLATED and death.suspect in self._left:
            self._blame(death.suspect, death)
        else:
            self.gave_up = death.reason

    def _find_culprit(self, attempt: Attempt, death: Death) -> None:
        if self._solo is not None:
            [name] = attempt.job.implementations
            self._blame(name, death)
            if name == self._solo.death.suspect:
                self._solo = None
            else:
                self._end_solo_trials()
        elif death.phase in EARLY:
            # Two workers died before any call: the case or the machine is at fault.
            for name in list(self._left):
                self._blame(name, death)
        elif len(self._left) == 1:
            self._blame(self._left[0], death)
        else:
            order = sorted(self._left, key=lambda name: name != death.suspect)
            self._solo = _SoloTrials(death, order)

    def _end_solo_trials(self) -> None:
        trial = self._solo
        if trial is None or self._untried:
            return
        self._solo = None
        if len(trial.survived) == len(trial.order):
            note = f"measured alone, since a worker with all of them died: {trial.death.reason}"
            self._settle(_add_notes(survivor, [note]) for survivor in trial.survived.values())

    def _settle(self, observations: Iterable[Observation]) -> None:
        for observation in observations:
            self.settled[observation.implementation] = observation
            self._left.remove(observation.implementation)

    def _blame(self, name: str, death: Death) -> None:
        self._settle([Observation(implementation=name, status=death.status, reason=death.reason)])


def _add_notes(observation: Observation, notes: Sequence[str]) -> Observation:
    return observation.model_copy(update={"notes": [*observation.notes, *notes]})


def _death_of_nsabench(attempt: Attempt, times: int) -> Death:
    often = "" if times == 1 else f" {times} times"
    names = attempt.job.implementations
    alone = len(names) == 1
    reason = (
        f"nsabench itself was killed{often} while {'it was' if alone else 'they were'} measured"
    )
    if alone:
        reason += "; it is not run again"
    return Death(status=Status.CRASHED, reason=reason, suspect=names[0] if alone else "")
