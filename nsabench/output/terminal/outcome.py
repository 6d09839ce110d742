"""The outcome of a run in ten lines: right, faster, from where, and is it to be believed?"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench.checks.proofs import regime_of
from nsabench.model.record import Record
from nsabench.model.vocabulary import Answer, Catch, Pays, Regime, Status, Verdict
from nsabench.output import grouped
from nsabench.output.standing import Standing, standings, tally_of_controls
from nsabench.running.run import Finished
from nsabench.verdicts import threshold
from nsabench.verdicts.failures import unproven
from nsabench.verdicts.pays import CALLED, Payment
from nsabench.verdicts.threshold import Decision

LEAST = 3  # lines of the candidates, however much pays
PAYS = 6  # lines of what pays, an op and regime each; they come before all others
ROOM = 8  # lines of all that is said, if what pays leaves so many for the rest


def of_payments(payments: Sequence[Payment]) -> Iterator[str]:
    """`nsa_attention pays from Python (queue): 64/4 forward from T = 32768, step from T = 8192`."""
    for (op, regime), of_op in grouped(payments, lambda p: (p.op, p.regime)).items():
        parts = [
            " ".join(filter(None, (heads, ", ".join(f"{p.direction} {_when(p)}" for p in own))))
            for heads, own in grouped(of_op, lambda p: p.heads).items()
        ]
        yield f"{op} pays {CALLED[regime]} ({regime}): {'; '.join(parts)}"


def _when(p: Payment) -> str:
    if p.answer is Pays.FROM:
        return f"from {p.axis} = {p.length}"
    if p.answer in (Pays.NO, Pays.NOT_FAR_ENOUGH):
        return f"{p.answer} (up to {p.axis} = {p.greatest})"
    return str(p.answer)


def lines(finished: Finished, room: int) -> list[str]:
    """Say how the user's candidates did, or else all; what was decided; and whether to believe it.
    room: for all except the last line. The candidates have at least `LEAST` lines of it."""
    candidates = standings(finished.results.records)
    own = of_the_user(finished)
    shown = [s for s in candidates if (s.op, s.implementation) in own] or candidates
    room = max(room, LEAST)
    # The decisions come first when lines are few.
    decided = list(_decisions(finished, {s.implementation for s in shown}))[: room - 1]
    said = [] if shown else ["no candidate took part: there is nothing to decide"]
    for count in range(len(shown), 0, -1):
        said = [line for standing in shown[:count] for line in _candidate(standing)]
        if left := len(shown) - count:
            said.append(f"and {left} more candidate{'s' if left > 1 else ''}: see the table")
        if len(said) + len(decided) <= room:
            break
    return [*said[: room - len(decided)], *decided, _believable(finished)]


def of_the_user(finished: Finished) -> set[tuple[str, str]]:
    return {(i.op, i.name) for i in finished.plan.implementations if i.source.is_file}


def _candidate(standing: Standing) -> list[str]:
    correct = f"{standing.implementation}: {standing.correctness}"
    if standing.right == standing.ran:
        return [", ".join([correct, *standing.speed])]
    return [correct, *(f"  {line}" for line in standing.speed)]


def _decisions(finished: Finished, names: set[str]) -> Iterator[str]:
    if not finished.folder.thresholds.exists():
        return
    decisions = threshold.decide_run(finished.results.records, finished.plan)
    own = [d for d in decisions if d.candidate in names]
    alike: dict[tuple[str, str, str], list[Regime]] = {}
    for (regime, sentence, why), same in grouped(
        own, lambda d: (d.regime, d.sentence, _why(d))
    ).items():
        who = ", ".join(dict.fromkeys(d.candidate for d in same))
        alike.setdefault((who, sentence, why), []).append(regime)
    for (who, sentence, why), regimes in alike.items():
        yield f"decision ({', '.join(regimes)}): {who}: {sentence}{f' ({why})' if why else ''}"
    otherwise = threshold.said_otherwise(finished.folder.path, finished.plan, decisions)
    if otherwise:
        yield otherwise


def _why(decision: Decision) -> str:
    by = decision.decided_by
    if decision.answer is Answer.NO and by is not None:
        found = str(by.verdict if by.status == Status.OK else by.status)
        if by.verdict is Verdict.FASTER:
            found += f", but not surely {decision.margin:g} times as fast,"
        return f"{found} at {by.axis}={by.length}"
    return decision.reasons[0] if decision.reasons else ""


def _believable(finished: Finished) -> str:
    records = finished.results.records
    got_away = [r for r in records if r.caught is Catch.MISSED]
    lacking = "; what is unproven stands above" if unproven(finished.results) else ""
    if not got_away:
        return f"believable: {controls(records) or 'no control ran'}{lacking}"
    names = ", ".join(sorted({r.implementation for r in got_away}))
    everywhere = any(regime_of(r.caught_by) is None for r in got_away)
    where = "" if everywhere else f" in the regime {Regime.QUEUE}"
    return f"believable: NO{where}: {names} was not caught{lacking}"


def controls(records: Sequence[Record]) -> str:
    tally = tally_of_controls(records, always=(Catch.MISSED,))
    return f"controls: {tally}" if tally else ""
