"""The outcome of a run in ten lines: right, faster, from where, and is it to be believed?"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from nsabench.assessment import pays, threshold
from nsabench.assessment.caution import speedups
from nsabench.assessment.checks.proofs import regime_of
from nsabench.assessment.failures import unproven
from nsabench.assessment.statistics import geometric_mean
from nsabench.assessment.threshold import Decision
from nsabench.execution.run import Finished
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Answer, Catch, Regime, Role, Status, Verdict
from nsabench.output.terminal import payment

LEAST = 3  # lines of the candidates, however much pays
PAYS = 6  # lines of what pays, an op and regime each; they come before all others
ROOM = 8  # lines of all that is told, if what pays takes no more than that leaves for the rest
Candidates = dict[tuple[str, str], list[Record]]


def paying(finished: Finished) -> list[str]:
    """From which length on what pays, an op and regime each."""
    return list(payment.lines(pays.decide(finished.results.records)))[:PAYS]


def lines(finished: Finished, room: int) -> list[str]:
    """The candidates, the user's own first, what was decided, and whether it is to be believed.

    room: for all but the last, of which the candidates have at least `LEAST`.
    """
    own = of_the_user(finished)
    groups = own or candidates(finished)
    room = max(room, LEAST)
    # What was decided is asked before how fast it is: it has its place first.
    decided = list(_decisions(finished, {name for _, name in groups}))[: room - 1]
    said = [] if groups else ["no candidate took part: there is nothing to decide"]
    for count in range(len(groups), 0, -1):
        said = [line for key in list(groups)[:count] for line in _candidate(key, groups[key])]
        if count < len(groups):
            said.append(f"{_more(len(groups) - count)}: see the table")
        if len(said) + len(decided) <= room:
            break
    said = said[: room - len(decided)]
    return [*said, *decided, _believable(finished)]


def _more(count: int) -> str:
    return f"and {count} more candidate{'s' if count > 1 else ''}"


def candidates(finished: Finished) -> Candidates:
    """The records of each candidate, by op and name."""
    groups: Candidates = {}
    for record in finished.results.records:
        if record.role is Role.CANDIDATE:
            groups.setdefault((record.op, record.implementation), []).append(record)
    return groups


def of_the_user(finished: Finished) -> Candidates:
    """Those that come from the file that the user gave."""
    own = {(i.op, i.name) for i in finished.plan.implementations if i.source.is_file}
    return {key: rows for key, rows in candidates(finished).items() if key in own}


def _candidate(key: tuple[str, str], rows: Sequence[Record]) -> Iterator[str]:
    _, name = key
    ran = [r for r in rows if r.status not in (Status.UNSUPPORTED, Status.SKIPPED)]
    if not ran:
        yield f"{name}: NOT RUN in {len(rows)} of {len(rows)}: {rows[0].reason}"
        return
    bad = [r for r in ran if r.status not in BENIGN]
    declined = f", declined {len(rows) - len(ran)}" if len(ran) < len(rows) else ""
    if bad:
        [(status, count)] = Counter(r.status for r in bad).most_common(1)
        first = next(r for r in bad if r.status is status)
        word = status.value.replace("_", " ").upper()
        why = first.diagnosis or first.reason
        yield f"{name}: {word} {count} of {len(ran)}{declined}: {why}"
        ran = [r for r in ran if r.status is Status.OK]
        if not ran:
            return
        yield from (f"  {line}" for line in _speed(ran))
        return
    head, *more = [f"{name}: RIGHT {len(ran)} of {len(ran)}{declined}", *_speed(ran)]
    yield f"{head}, {', '.join(more)}"


def _speed(rows: Sequence[Record]) -> Iterator[str]:
    timed = [r for r in rows if r.median_ms is not None]
    if not timed:
        yield "not timed (CPU)" if rows[0].device == "cpu" else "not timed"
        return
    for regime in Regime:
        verdicts = Counter(judged[0] for r in timed if (judged := r.judged_in(regime)))
        if verdicts:
            yield f"{regime}: {_ratios(verdicts, speedups(timed, regime))}"
    cautions = Counter(r.caution for r in timed if r.caution)
    yield from (f"{caution} in {n} of {len(timed)}" for caution, n in cautions.items())
    if not any(r.verdict for r in timed):
        yield "no verdict"


def _ratios(verdicts: Counter[Verdict], ratios: Sequence[float]) -> str:
    average = geometric_mean(ratios)
    said = "no ratio"
    if average is not None:
        span = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
        said = f"{average:.2f}x as fast{span}"
    return ", ".join([said, *(f"{verdicts[v]} {v}" for v in Verdict if verdicts[v])])


def _decisions(finished: Finished, names: set[str]) -> Iterator[str]:
    """What was decided of these, where a decision was made; candidates and regimes of which the
    same is so on one line."""
    if not finished.folder.thresholds.exists():
        return
    decisions = threshold.decide_run(finished.results.records, finished.plan)
    alike: dict[tuple[Regime, str, str], list[Decision]] = {}
    for decision in decisions:
        if decision.candidate in names:
            why = _why(decision)
            alike.setdefault((decision.regime, decision.sentence, why), []).append(decision)
    regimes: dict[tuple[str, str, str], list[Regime]] = {}
    for (regime, sentence, why), group in alike.items():
        who = ", ".join(dict.fromkeys(d.candidate for d in group))
        regimes.setdefault((who, sentence, why), []).append(regime)
    for (who, sentence, why), of in regimes.items():
        yield f"decision ({', '.join(of)}): {who}: {sentence}{f' ({why})' if why else ''}"
    otherwise = threshold.said_otherwise(finished.folder.path, finished.plan, decisions)
    if otherwise:
        yield otherwise


def _why(decision: Decision) -> str:
    """Why it is not worth using, or not decided, in a few words."""
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
    missed = sorted({r.implementation for r in got_away})
    everywhere = any(regime_of(r.caught_by) is None for r in got_away)
    lacking = unproven(finished.results)
    shown = "; what is unproven stands above" if lacking else ""
    if missed:
        where = "" if everywhere else f" in the regime {Regime.QUEUE}"
        return f"believable: NO{where}: {', '.join(missed)} was not caught{shown}"
    return f"believable: {controls(records) or 'no control ran'}{shown}"


def controls(records: Sequence[Record]) -> str:
    """What became of the controls, on one line; empty where there are none."""
    counts = Counter(r.caught for r in records if r.caught)
    if not counts:
        return ""
    shown = [c for c in Catch if counts[c] or c is Catch.MISSED]
    return "controls: " + ", ".join(f"{counts[c]} {c}" for c in shown)
