"""Shows the end of a run: findings, the table of candidates, and a panel of ten lines."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from rich.console import Console
from rich.panel import Panel
from rich.text import Text

from nsabench import labels
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.proofs import regime_of
from nsabench.model.record import Record
from nsabench.model.vocabulary import BENIGN, Answer, Catch, Pays, Regime, Role, Status, Verdict
from nsabench.output import grouped, tables
from nsabench.output.document import FAILED, STYLES, on_terminal
from nsabench.output.standing import Standing, standings, tally_of_controls
from nsabench.running.run import Finished
from nsabench.text import shown
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.break_even import CALLED, BreakEven
from nsabench.verdicts.failures import failures, unproven
from nsabench.verdicts.threshold import Decision


def print_summary(finished: Finished, console: Console, *, verbose: bool = False) -> None:
    """Print findings, table and panel. verbose: print every baseline, control and finding."""
    records = finished.results.records
    missed = any(r.caught is Catch.MISSED for r in records)
    if verbose or missed:
        console.print(*on_terminal([tables.others(records)]))
    elif told := controls(records):
        console.print(told, highlight=False, soft_wrap=True)
    console.print(_describe_time(finished), highlight=False, soft_wrap=True)
    _print_grave(finished, console, verbose=verbose)
    for line in _list_failed(finished):
        console.print(Text(shown(line)), soft_wrap=True)
    own = of_the_user(finished)
    own_last = sorted(records, key=lambda r: (r.op, r.implementation) in own)
    for block in on_terminal(tables.candidates_on_terminal(own_last, console.width)):
        console.print(block)
    console.print(_build_panel(finished, console.width))


def _print_grave(finished: Finished, console: Console, *, verbose: bool) -> None:
    records = finished.results.records
    controls = {r.implementation for r in records if r.role is Role.CONTROL}
    grave = [
        f
        for f in finished.results.findings
        # Findings in a caught control are expected.
        if f.effect is Effect.INVALID
        or (f.implementation not in controls and (f.effect is not Effect.NOTE or not f.case_id))
    ]
    if grave:
        cases = {r.case_id: labels.named(r) for r in records}
        print_findings(grave, cases, console, each=verbose)


def _list_failed(finished: Finished) -> Iterator[str]:
    records = finished.results.records
    failed = (r for r in records if r.role is not Role.CONTROL and r.status not in BENIGN)
    groups = grouped(failed, lambda r: (r.implementation, r.status, r.diagnosis or r.reason))
    for (name, status, why), rows in groups.items():
        often = f"in {len(rows)} cases, first " if len(rows) > 1 else ""
        yield f"failed: {name} {often}on {labels.named(rows[0])}: {status}: {why}"
        log = finished.folder.path / "logs" / f"{rows[0].case_id}.log"
        if status != Status.WRONG and log.exists():
            yield f"  its traceback and what it printed: {log}"


def _describe_time(finished: Finished) -> str:
    count, wall_s = len(finished.results.records), max(finished.wall_s, 1e-9)
    harness_s = finished.wall_s - finished.measuring_s
    return (
        f"{count} records in {finished.wall_s:.1f} s; "
        f"the harness took {harness_s:.1f} s of it ({harness_s / wall_s:.0%})"
    )


def _build_panel(finished: Finished, width: int) -> Panel:
    failed = failures(finished.results)
    texts = list(of_payments(break_even.decide(finished.results.records)))[:PAYS]
    # The table or the page has the whole of a line that is cut here.
    for line in lines(finished):
        texts.append(line if len(line) <= width - 4 else f"{line[: width - 5]}…")
    page = finished.folder.path / "report.html"
    texts.append(f"report: {page}" if page.exists() else f"results: {finished.folder.path}")
    return Panel(
        Text("\n".join(map(shown, texts))),
        title="failed" if failed else "complete",
        border_style="red" if failed else "green",
    )


def print_findings(
    findings: Sequence[Finding],
    cases: Mapping[str, str],
    console: Console,
    *,
    each: bool = False,
) -> None:
    """Print a line for each check and implementation, or for each finding. cases: names by id."""

    def alike(place: int) -> object:
        finding = findings[place]
        # A finding without a case is about the run.
        alone = each or not finding.case_id
        return place if alone else (finding.check, finding.effect, finding.implementation)

    for places in grouped(range(len(findings)), alike).values():
        last = findings[places[-1]]
        case = cases.get(last.case_id, last.case_id)
        where = " on ".join(part for part in (last.implementation, case) if part)
        often = f"in {len(places)} cases; the last, " if len(places) > 1 else ""
        console.print(
            Text.assemble(
                (f"{last.effect:12}", STYLES.get(last.effect, FAILED)),
                f" {shown(last.check)}: {often}",
                (shown(f"{where}: ") if where else "", "bold"),
                shown(last.sentence),
            ),
        )
    if not findings:
        console.print("nothing was found")


MOST = 3  # candidates, and decisions, in the panel
PAYS = 6  # lines of break-even lengths in the panel


def of_payments(payments: Sequence[BreakEven]) -> Iterator[str]:
    """Yield lines such as `nsa_attention pays from Python (queue): 64/4 forward from T = 32768`."""
    for (op, regime), of_op in grouped(payments, lambda p: (p.op, p.regime)).items():
        parts = [
            " ".join(
                filter(
                    None, (heads, ", ".join(f"{p.direction} {_describe_length(p)}" for p in own))
                )
            )
            for heads, own in grouped(of_op, lambda p: p.heads).items()
        ]
        yield f"{op} pays {CALLED[regime]} ({regime}): {'; '.join(parts)}"


def _describe_length(p: BreakEven) -> str:
    if p.answer is Pays.FROM:
        return f"from {p.axis} = {p.length}"
    if p.answer is Pays.NO:
        return f"{p.answer} (up to {p.axis} = {p.greatest})"
    return str(p.answer)


def lines(finished: Finished) -> list[str]:
    """Say how the user's candidates did, what was decided, and whether to believe it.

    A run without candidates of the user shows all candidates.
    """
    candidates = standings(finished.results.records)
    own = of_the_user(finished)
    shown = [s for s in candidates if (s.op, s.implementation) in own] or candidates
    texts = [line for standing in shown[:MOST] for line in _describe_candidate(standing)]
    if len(shown) > MOST:
        texts.append(f"and {len(shown) - MOST} more: see the table")
    texts += list(_list_decisions(finished, {s.implementation for s in shown}))[:MOST]
    return [*(texts or ["no candidate took part"]), _judge_run(finished)]


def of_the_user(finished: Finished) -> set[tuple[str, str]]:
    return {(i.op, i.name) for i in finished.plan.implementations if i.source.is_file}


def _describe_candidate(standing: Standing) -> list[str]:
    correct = f"{standing.implementation}: {standing.correctness}"
    if standing.right == standing.ran:
        return [", ".join([correct, *standing.speed])]
    return [correct, *(f"  {line}" for line in standing.speed)]


def _list_decisions(finished: Finished, names: set[str]) -> Iterator[str]:
    if not finished.folder.thresholds.exists():
        return
    decisions = threshold.decide_run(finished.results.records, finished.plan)
    own = [d for d in decisions if d.candidate in names]
    groups = grouped(own, lambda d: (d.candidate, d.sentence, _explain_decision(d)))
    for (name, sentence, why), alike in groups.items():
        regimes = ", ".join(dict.fromkeys(d.regime for d in alike))
        yield f"decision ({regimes}): {name}: {sentence}{f' ({why})' if why else ''}"


def _explain_decision(decision: Decision) -> str:
    by = decision.decided_by
    if decision.answer is Answer.NO and by is not None:
        verdict, status = by.comparison.verdict, by.record.status
        found = str(verdict if status is Status.OK else status)
        if verdict is Verdict.FASTER:
            found += f", but not surely {decision.margin:g} times as fast,"
        return f"{found} at {decision.axis}={by.length}"
    return decision.reasons[0] if decision.reasons else ""


def _judge_run(finished: Finished) -> str:
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
