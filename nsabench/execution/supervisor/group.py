"""Implementations that are measured together on a case, until each has an outcome."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count

from nsabench.execution.protocol import Measured
from nsabench.execution.supervisor.executor import Executor, GroupLost
from nsabench.execution.supervisor.killed import NEVER, Killed
from nsabench.execution.supervisor.loss import WorkerRefused
from nsabench.execution.supervisor.retry import BEFORE_ANY, cooled, unless_lost_early
from nsabench.model.case import Case
from nsabench.model.journal import Entry
from nsabench.model.measurement import Conditions, Outcome
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Mode, PassName, Role, Runs, Status

# Of the timeout of a case: who was called for all of it, and is tried alone, need not have all of
# it once more. What was compiled meanwhile is in the caches.
LESS_PATIENCE = 0.15
BEATEN = (Role.BASELINE, Role.ALTERNATIVE)


class Group:
    """One case in one pass.

    on_loss: what is done when the worker of `pending` is lost. It gives at least one of them an
      outcome and returns whether to go on; the entry of a group that does not has the reason.
    first_session: the number of its first session; each attempt has one of its own.
    begin: told whom an attempt is of, before it is made.
    killed: how earlier processes ended that measured it.
    partial: whether the executor's workers import some of the plan's sources only.
    """

    def __init__(
        self,
        plan: Plan,
        case: Case,
        names: Sequence[str],
        executor: Executor,
        on_loss: OnLoss,
        first_session: int = 1,
        *,
        begin: Callable[[list[str]], None] = lambda names: None,
        killed: Killed = NEVER,
        partial: bool = False,
    ) -> None:
        self.case = case
        self.names = list(names)
        self.outcomes: dict[str, Outcome] = {}
        self.reason = ""
        self._executor = executor
        self._on_loss = on_loss
        self._sessions = count(first_session)
        self._begin = begin
        self._killed = killed
        self._partial = partial
        self._plan = plan
        self._conditions: dict[int, Conditions] = {}
        self._measuring_s = 0.0
        self._queue_s = 0.0
        for name in self.names:
            reason = _cannot_run(plan, self.case, name)
            if reason:
                self.outcomes[name] = Outcome(
                    implementation=name, status=Status.SKIPPED, reason=reason
                )

    def measure(self, name: PassName) -> Entry:
        """Measure until each has an outcome, or until `on_loss` gives up."""
        if not self._go_on():
            return self._entry(name)
        try:
            self._measure()
        except WorkerRefused as refused:
            # Not of all sources: of a part of them one may need another.
            if not self._partial:
                raise
            self.reason = str(refused)
        return self._entry(name)

    def _measure(self) -> None:
        while pending := [n for n in self.names if n not in self.outcomes]:
            try:
                measured = cooled(lambda names=pending: self.attempt(names))  # type: ignore[misc]
                self.outcomes |= {o.implementation: o for o in measured.outcomes}
            except GroupLost as lost:
                if not self._on_loss(self, pending, lost):
                    self.reason = lost.reason
                    break

    def _go_on(self) -> bool:
        """Do not run into the death again that an earlier process died; whether to measure."""
        pending = [n for n in self.names if n not in self.outcomes]
        judged = {n for n in pending if self._plan.info(self.case.op, n).role not in BEATEN}
        guilty = self._killed.guilty(pending, judged)
        for name in guilty:
            self.condemn(name, self._killed.lost(name))
        pending = [n for n in pending if n not in guilty]
        if not pending or not self._killed.unexplained(guilty):
            return True
        lost = self._killed.lost()
        if self._on_loss(self, pending, lost):
            return True
        self.reason = lost.reason
        return False

    def _entry(self, name: PassName) -> Entry:
        return Entry(
            pass_name=name,
            case_id=self.case.id,
            outcomes=[self.outcomes[n] for n in self.names if n in self.outcomes],
            conditions=self._conditions,
            measuring_s=self._measuring_s,
            queue_s=self._queue_s,
            reason=self.reason,
        )

    def attempt(self, names: list[str], patience: float = 1.0) -> Measured:
        """Measure these together, in a session of their own. Raises `GroupLost`.

        patience: times the case's own timeout.
        """
        case = self.case
        if patience != 1.0:
            case = case.model_copy(update={"timeout_s": patience * case.timeout_s})
        session = next(self._sessions)
        self._begin(names)
        measured = unless_lost_early(lambda: self._executor.measure(case, names, session))
        if [outcome.implementation for outcome in measured.outcomes] != names:
            raise GroupLost(
                "", Status.CRASHED, "the worker answered for others than it was asked", ""
            )
        self._conditions[session] = measured.conditions
        self._measuring_s += measured.measuring_s
        self._queue_s += measured.queue_s
        log = self._executor.log()
        for outcome in measured.outcomes:
            outcome.log = log
        return measured

    def condemn(self, name: str, lost: GroupLost) -> None:
        """Give `name` the outcome that the loss of the worker means."""
        self.outcomes[name] = Outcome(
            implementation=name, status=lost.status, reason=lost.reason, log=lost.log
        )


OnLoss = Callable[[Group, list[str], GroupLost], bool]


def find_culprit(group: Group, pending: list[str], lost: GroupLost) -> bool:
    """Find out who ended the worker by running them alone.

    Whoever shares the process may have forged what it said, so a name is only a suspicion. The
    suspect alone first: if it fails alone it is guilty, and the others are run together again. If
    it is innocent, each is run alone. If all are innocent alone, only the combination fails, and
    what each did alone is what is known.
    """
    if lost.phase in BEFORE_ANY:
        # No implementation was called, twice: the case itself, or the machine, is the fault.
        for name in pending:
            group.condemn(name, lost)
        return True
    if len(pending) == 1:
        group.condemn(pending[0], lost)
        return True
    alone: dict[str, Outcome] = {}
    for name in sorted(pending, key=lambda n: n != lost.suspect):
        try:
            alone[name] = _alone(group, name, lost)
        except GroupLost as lost_alone:
            group.condemn(name, lost_alone)
            if name == lost.suspect:
                return True
    if len(alone) == len(pending):
        for outcome in alone.values():
            outcome.notes.append(f"measured alone, since together: {lost.reason}")
        group.outcomes.update(alone)
    return True


def _alone(group: Group, name: str, lost: GroupLost) -> Outcome:
    """What it does by itself. Raises `GroupLost`: that of the group when it hangs once more."""
    if lost.status is Status.TIMEOUT and name == lost.suspect:
        try:
            return group.attempt([name], LESS_PATIENCE).outcomes[0]
        except GroupLost as again:
            if again.suspect == name:
                raise lost if again.status is Status.TIMEOUT else again from None
        # Its inputs, which are not its own, take longer than that.
    return group.attempt([name]).outcomes[0]


def leave_out_suspect(group: Group, pending: list[str], lost: GroupLost) -> bool:
    """Go on without whom the worker was busy with; give up where nobody is named."""
    if lost.suspect not in pending:
        return False
    group.condemn(lost.suspect, lost)
    return True


def give_up(group: Group, pending: list[str], lost: GroupLost) -> bool:
    """A process that is lost shows nothing: its reason is all that is known."""
    return False


def _cannot_run(plan: Plan, case: Case, name: str) -> str:
    devices = plan.info(case.op, name).devices
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
