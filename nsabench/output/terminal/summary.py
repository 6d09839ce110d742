import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from textwrap import wrap

from rich.console import Console
from rich.text import Text

from nsabench import labels
from nsabench.checks.controls import guarded_regime
from nsabench.checks.finding import Effect, Finding
from nsabench.model.vocabulary import BENIGN, Catch, Role, Status
from nsabench.output import answer, grouped, tables
from nsabench.output.document import FAILED, STYLES, Sentence, on_terminal
from nsabench.output.standing import is_of_the_user, tally_of_controls
from nsabench.running.run import Finished
from nsabench.text import shown
from nsabench.verdicts import break_even, threshold
from nsabench.verdicts.records import STATUS_OF

MOST_LINES = 12  # lines of the answer
WIDTH = 80  # columns of the answer
MOST_PAYS = 4  # break-even lengths in the answer


def print_summary(
    finished: Finished,
    console: Console,
    *,
    signed: str = "",
    verbose: bool = False,
    wide: bool = False,
) -> None:
    """Print the end of a run, with `signed`, a sentence about the signature. If `verbose`, print
    every baseline, control and finding. If `wide`, show every column."""
    records = finished.results.records
    if verbose or any(r.caught is Catch.MISSED for r in records):
        console.print(*on_terminal([tables.others(records)]))
    if verbose:
        harness_s = finished.wall_s - finished.measuring_s
        console.print(f"the harness took {harness_s:.1f} s of {finished.wall_s:.1f} s")
    _print_grave(finished, console, verbose=verbose)
    for line in _list_logs(finished):
        console.print(Text(shown(line)), soft_wrap=True)
    own_last = sorted(records, key=lambda r: is_of_the_user(finished.plan, r))
    for block in on_terminal(tables.candidates(own_last, wide=wide)):
        console.print(block)
    # Do not wrap lines in a pipe: programs search them for sentences.
    width = min(console.width, WIDTH) if console.is_terminal else sys.maxsize
    print_sentences(describe_end(finished, signed, width=width), console)


def print_sentences(sentences: Iterable[Sentence], console: Console) -> None:
    for sentence in sentences:
        console.print(Text(shown(sentence.text), sentence.style), soft_wrap=True)


def _print_grave(finished: Finished, console: Console, *, verbose: bool) -> None:
    records = finished.results.records
    controls = {r.implementation for r in records if r.role is Role.CONTROL}
    grave = []
    for f in finished.results.findings:
        # Findings about controls are expected. A finding that sets a status is shown with it.
        is_told = f.implementation in controls or f.effect in STATUS_OF
        is_note = f.effect is Effect.NOTE and f.case_id
        if verbose or f.effect is Effect.INVALID or not (is_told or is_note):
            grave.append(f)
    if grave:
        cases = {r.case_id: labels.case_with_id(r) for r in records}
        print_findings(grave, cases, console, each=verbose)


def _list_logs(finished: Finished) -> Iterator[str]:
    """Yield failures with their logs, except candidates that are wrong or have no log."""
    compared = (r for r in finished.results.records if r.role is not Role.CONTROL)
    failed = [r for r in compared if r.status not in BENIGN]
    failed.sort(key=lambda r: not is_of_the_user(finished.plan, r))
    groups = grouped(failed, lambda r: (r.implementation, r.status, r.diagnosis or r.reason))
    for (name, status, why), rows in groups.items():
        log = finished.folder.path / "logs" / f"{rows[0].case_id}.log"
        if rows[0].role is Role.CANDIDATE and (status is Status.WRONG or not log.exists()):
            continue
        often = f"in {len(rows)} cases, first " if len(rows) > 1 else ""
        yield f"failed: {name} {often}on {labels.case_with_id(rows[0])}: {status}: {why}"
        if log.exists():
            yield f"  its traceback and what it printed: {log}"


def print_findings(
    findings: Sequence[Finding], cases: Mapping[str, str], console: Console, *, each: bool = False
) -> None:
    """Print a line for each check, effect and implementation, or (`each`) for each finding."""

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
            )
        )
    if not findings:
        console.print("nothing was found")


def describe_end(finished: Finished, signed: str = "", *, width: int = WIDTH) -> list[Sentence]:
    """Return the answer: outcome, the user's candidates, break-even lengths, trust and report."""
    records, plan = finished.results.records, finished.plan
    own, shipped = answer.split_candidates(plan, records)
    page = finished.folder.path / "report.html"
    after = [
        *list(answer.describe_payments(break_even.decide(records)))[:MOST_PAYS],
        *([answer.describe_shipped(shipped)] if shipped else []),
        _describe_trust(finished, signed),
    ]
    last = [line for text in after for line in _wrap(text, width)]
    last.append(f"report: {page}" if page.exists() else f"results: {finished.folder.path}")
    decisions = []
    if finished.folder.thresholds.exists():
        decisions = threshold.decide_run(records, plan)
    room, lines = MOST_LINES - 1 - len(last), list[Sentence]()
    full = [f"{s.implementation}: {'; '.join(answer.list_findings(s, decisions))}" for s in own]
    texts = [_wrap(text, width) for text in full]
    if sum(map(len, texts)) > room:
        texts = [_wrap(f"{s.implementation}: {s.brief}", width) for s in own]
    for place, (standing, text) in enumerate(zip(own, texts, strict=True)):
        is_last = place == len(own) - 1
        if len(lines) + len(text) > room - (not is_last):
            lines.append(Sentence(f"and {len(own) - place} more: see the table"))
            break
        style = "" if standing.right == standing.ran else FAILED
        lines += [Sentence(line, style) for line in text]
    of_shards = ", the sum of its shards" if plan.shards else ""
    took = f" in {finished.wall_s:.1f} s{of_shards}"
    outcome = answer.describe_outcome(plan, finished.results, took)
    return [outcome, *lines, *map(Sentence, last)]


def _wrap(text: str, width: int) -> list[str]:
    text = text.replace(" = ", "\N{NO-BREAK SPACE}=\N{NO-BREAK SPACE}")  # `T = 32768` is one word
    lines = wrap(
        text, width, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )
    return [line.replace("\N{NO-BREAK SPACE}", " ") for line in lines]


def _describe_trust(finished: Finished, signed: str) -> str:
    records = finished.results.records
    missed = [r for r in records if r.caught is Catch.MISSED]
    tally = tally_of_controls(records, always=(Catch.MISSED,))
    parts = [f"controls: {tally}" if tally else "no control ran"]
    if missed:
        names = ", ".join(sorted({r.implementation for r in missed}))
        everywhere = any(guarded_regime(r.caught_by) is None for r in missed)
        where = "" if everywhere else " in the regime queue"
        parts.append(f"{names} not caught, so nothing is decided{where}")
    return "; ".join([*parts, *filter(None, signed.splitlines())])
