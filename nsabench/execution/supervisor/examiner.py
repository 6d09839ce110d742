"""Which calls are looked at from outside, how often, and what becomes of who was seen.

On the CPU, for calls one at a time. On a GPU inputs and outputs are copied through the host, which
a baseline pays as well, for small cases and where `ON_CUDA` asks for it: it was not tried on one.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from nsabench import ops
from nsabench.assessment.checks.outside import ON_NEW_INPUTS, is_no_faster, longest_ms
from nsabench.assessment.statistics import quantile
from nsabench.execution.supervisor.look import Examinee, Fault, Look, Looker, Unseen, Yardstick
from nsabench.model.case import Case
from nsabench.model.measurement import Bursts, Outcome, Outside, Samples
from nsabench.model.plan import Device, ImplementationInfo
from nsabench.model.vocabulary import Mode, Role, Status

LOOK_MS = 20.0  # of calls in one look, by what they took last or say they take
LEAST_MS = 0.5  # of what they say; by what they took there are as many more in the next look
MOST_CALLS = 128
MOST_BYTES = 64 << 20  # of inputs in one look
LOOKS = 5  # as many, before a time is doubted
PAUSE_S = 0.05  # between looks: what held the machine up may be over

ON_CUDA = "NSABENCH_OUTSIDE_ON_CUDA"
MOST_COPIED_BYTES = 64 << 20  # of a call on a GPU; the referee's oracle takes its time, too

Infos = Mapping[str, ImplementationInfo]


def examines(device: Device, case: Case) -> bool:
    """Whether calls of this kind can be looked at from outside."""
    if case.streams > 1 or case.timing.mode is not Mode.STREAM:
        return False
    return device == "cpu" or (
        os.environ.get(ON_CUDA) == "1" and ops.work(case).bytes_min <= MOST_COPIED_BYTES
    )


def found_out(outcome: Outcome) -> bool:
    """Whether it was wrong where only the referee knew what is right."""
    return outcome.reason.startswith(ON_NEW_INPUTS)


@dataclass(frozen=True)
class Rival:
    """A baseline, and what it says."""

    name: str
    claim_ms: float


def rivals(outcomes: Sequence[Outcome], infos: Infos) -> list[Rival]:
    """The baselines among `infos` that are right, the fastest first."""
    found = [
        Rival(o.implementation, claim)
        for o in outcomes
        if o.implementation in infos
        and infos[o.implementation].role is Role.BASELINE
        and o.status is Status.OK
        and (claim := _claim_ms(o))
    ]
    return sorted(found, key=lambda rival: rival.claim_ms)


class Examiner:
    """Looks at candidates, and at a baseline beside them.

    beside: whoever has the baselines, in a process that imports no candidate.
    """

    def __init__(self, looker: Looker, beside: Callable[[], Examinee]) -> None:
        self._looker = looker
        self._beside = beside

    def examine(
        self,
        case: Case,
        outcomes: Sequence[Outcome],
        infos: Infos,
        by: Examinee,
        rivals: Sequence[Rival],
    ) -> None:
        """Look at the candidates among `outcomes`: what was seen, or that they are wrong, is put
        there. by: who calls them; rivals: what they want to beat, the fastest first."""
        for outcome in outcomes:
            info = infos.get(outcome.implementation)
            if info is None or info.role is not Role.CANDIDATE or outcome.status is not Status.OK:
                continue
            outcome.outside = Outside()
            try:
                self._watch(case, info, outcome, by, rivals)
            except Fault as fault:
                _condemn(outcome, fault)
            except Unseen as unseen:
                outcome.outside = Outside(reason=str(unseen))

    def _watch(
        self,
        case: Case,
        info: ImplementationInfo,
        outcome: Outcome,
        by: Examinee,
        rivals: Sequence[Rival],
    ) -> None:
        """The least times of several looks; one is enough where it agrees with the claim."""
        claim = _claim_ms(outcome)
        count = 1 if claim is None else _count(case, max(claim, LEAST_MS))
        left = [] if claim is None else [rival.name for rival in rivals]
        for number in range(LOOKS):
            if number:
                time.sleep(PAUSE_S)
            rival = left[0] if left else ""
            yardstick = Yardstick(self._beside(), rival) if rival else None
            # With nobody to be held to, what is not seen in turn is not seen at all.
            seen = self._looker.look(case, info, count, by, yardstick, in_turn=not rivals)
            _tell(outcome, seen)
            assert outcome.outside is not None
            outcome.outside = _joined(outcome.outside, seen, rival)
            if claim is None:
                return
            if _settled(claim, outcome.outside, rivals):
                if yardstick is not None and _wants_to_beat(claim, rivals):
                    self._watch_in_turn(case, info, outcome, by, yardstick)
                return
            if outcome.outside.baseline_ms is None:  # it failed: the next may not
                left = left[1:]
            count = _count(case, seen.time_ms)

    def _watch_in_turn(
        self,
        case: Case,
        info: ImplementationInfo,
        outcome: Outcome,
        by: Examinee,
        yardstick: Yardstick,
    ) -> None:
        """Of who is faster by the looks so far, several more in which it knows one set of inputs at
        a time: who had all of them could compute them in one call. They end when it is faster."""
        seen = outcome.outside
        assert seen is not None
        if is_no_faster(seen):
            return
        count = _count(case, max(seen.time_ms, LEAST_MS))
        for _ in range(LOOKS):
            found = self._looker.look(case, info, count, by, yardstick, in_turn=True)
            _tell(outcome, found)
            seen.in_turn_ms = min(found.time_ms, seen.in_turn_ms or found.time_ms)
            if found.beside_ms is not None:
                beside = seen.baseline_in_turn_ms or found.beside_ms
                seen.baseline_in_turn_ms = min(found.beside_ms, beside)
            if not is_no_faster(seen):
                return
            time.sleep(PAUSE_S)


def _joined(before: Outside, seen: Look, rival: str) -> Outside:
    """The least of both: whatever else a machine does makes a time longer. A rival that failed
    takes away nothing that was seen of it, and has a name, if nothing was."""
    times = [seen.time_ms, *([before.time_ms] if before.calls else [])]
    joined = Outside(
        calls=seen.calls,
        time_ms=min(times),
        baseline=before.baseline or rival,
        baseline_ms=before.baseline_ms,
        baseline_claim_ms=before.baseline_claim_ms,
    )
    if seen.beside_ms is None or seen.beside_own_ms is None:
        return joined
    beside, own = seen.beside_ms, seen.beside_own_ms
    if before.baseline == rival and before.baseline_ms is not None:
        beside = min(beside, before.baseline_ms)
        own = min(own, before.baseline_claim_ms or own)
    joined.baseline, joined.baseline_ms, joined.baseline_claim_ms = rival, beside, own
    return joined


def _settled(claim_ms: float, seen: Outside, rivals: Sequence[Rival]) -> bool:
    """Whether nothing hangs on another look."""
    if seen.time_ms > longest_ms(claim_ms, seen):
        return False
    return not _wants_to_beat(claim_ms, rivals) or not is_no_faster(seen)


def _wants_to_beat(claim_ms: float, rivals: Sequence[Rival]) -> bool:
    return all(claim_ms < rival.claim_ms for rival in rivals)


def _condemn(outcome: Outcome, fault: Fault) -> None:
    """One that failed where nobody could help it. It cannot decline what it has done before."""
    outcome.status = Status.WRONG if fault.status is Status.UNSUPPORTED else fault.status
    outcome.reason = ON_NEW_INPUTS + fault.reason
    outcome.samples, outcome.bursts = Samples(), Bursts()


def _tell(outcome: Outcome, seen: Look) -> None:
    """Errors that the referee found count where they are larger than those that the worker told."""
    for kind in ("mae", "max_abs_err", "rel_l2"):
        told, found = getattr(outcome, kind), getattr(seen.judged, kind)
        if found is not None and (told is None or found > told):
            setattr(outcome, kind, found)
    found = seen.judged.worst_row
    if found is not None and (outcome.worst_row is None or found > outcome.worst_row):
        outcome.worst_row, outcome.worst_row_at = found, seen.judged.worst_row_at


def _claim_ms(outcome: Outcome) -> float | None:
    """The least that a call takes by its own clock."""
    times = [one.time_ms for one in (outcome.samples, outcome.bursts) if one.time_ms]
    return min((quantile(one, 0.5) for one in times), default=None)


def _count(case: Case, call_ms: float) -> int:
    """How many sets of inputs a look is of."""
    affordable = MOST_BYTES // max(ops.work(case).bytes_min, 1)
    return max(1, min(MOST_CALLS, affordable, math.ceil(LOOK_MS / call_ms)))
