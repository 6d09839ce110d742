"""The tables at the end of a run: candidates, and what they were held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Regime, Role, Status, Verdict
from nsabench.output import grouped
from nsabench.output.document import number
from nsabench.text import shown
from nsabench.verdicts.caution import beside

STYLES: dict[str, str] = {
    Status.OK: "green",
    Status.SKIPPED: "dim",
    Status.UNSUPPORTED: "dim",
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "red",
    Verdict.SAME: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INVALID: "bold red",
}
# Marks of verdicts, and what they mean.
MARKS = {
    "*": "* no control showed that each check behind it works: see `unproven`",
    "†": f"† {NO_SPECIALISED}: a ratio over 3, over masks, gathers or FlexAttention alone",
}
WIDE = 120  # a terminal that has room for the error, the status and the interval
WIDER = 160  # one that has room for every column; in less, names would be broken into pieces
NAMES = ("case", "candidate", "best baseline")
WORDS = (*NAMES, "status", "verdict")
MOST_CHARACTERS = 100  # of an example


def candidates_table(records: Sequence[Record], width: int = WIDE) -> Table:
    """A line for each case and candidate, with its best baseline. width: of the terminal; a narrow
    one gets the columns that decide."""
    table = _table("candidates")
    by_key = {r.key: r for r in records}
    for r in records:
        if r.role is not Role.CANDIDATE:
            continue
        cells = dict(_cells(r, by_key.get((r.case_id, r.best_baseline)), width))
        if not table.columns:
            for name in cells:
                # Words may take a second line; a number that is cut off is none.
                wrapped = name in NAMES
                justify = "left" if name in WORDS else "right"
                table.add_column(name, justify=justify, no_wrap=not wrapped, overflow="fold")  # type: ignore[arg-type]
        table.add_row(*cells.values())
    standings = "".join(standing(r) for r in records if r.median_ms is not None)
    said = [text for mark, text in MARKS.items() if mark in standings]
    if said:
        table.caption = "\n".join(said)
        table.caption_justify = "left"
    return table


def _cells(r: Record, baseline: Record | None, width: int) -> Iterator[tuple[str, str | Text]]:
    wide, wider = width >= WIDE, width >= WIDER
    yield "case", shown(labels.case(r))
    yield "candidate", shown(r.implementation)
    if wide:
        yield "status", Text(r.status, STYLES.get(r.status, "bold red"))
        yield "MAE", number(r.mae, ".1e", "-")
    yield "ms", number(r.median_ms, ".4g", "-")
    if wider:
        yield "queued", number(r.queued_ms, ".4g", "-")
        launches = "" if r.launches is None else f", {r.launches}"
        yield "host µs,\nlaunches", number(r.host_us, ".0f", "-") + launches
    if wide:
        yield "of\nroofline", number(r.roofline_fraction, ".0%", "-")
    if wider:
        yield "best baseline", shown(r.best_baseline)
    baseline_ms = baseline.median_ms if baseline else None
    yield "its ms" if wider else "baseline\nms", number(baseline_ms, ".4g", "-")
    if wide:
        interval = f" [{r.speedup_lo:.3f}, {r.speedup_hi:.3f}]" if r.speedup is not None else ""
        yield "speed-up [95 %]", number(r.speedup, ".3f", "") + interval
    else:
        yield "speed-up", number(r.speedup, ".2f", "")
    yield "verdict", _verdict(r, width)


def _verdict(r: Record, width: int) -> Text:
    """The verdict; or the status of what is not ok, if that has no column."""
    if width < WIDE and r.status is not Status.OK:
        return Text(r.status, STYLES.get(r.status, "bold red"))
    said = standing(r) if r.median_ms is None else standing(r).replace(" ", "\n")
    return Text(said, STYLES[r.verdict] if r.verdict and r.median_ms is not None else "dim")


def standing(record: Record) -> str:
    """The verdict of each regime, marked if a check behind it was not shown to work, or if
    something is to be borne in mind."""
    if record.status is Status.OK and record.median_ms is None:
        return "not timed"

    def dagger(regime: Regime) -> str:
        return "†" * bool(beside(record, regime))

    mark = "*" * record.unproven_verdict + dagger(record.regime)
    said = [f"{record.regime} {record.verdict}{mark}"] if record.verdict else []
    queue = record.compared(Regime.QUEUE)
    if queue is not None and queue.verdict:
        said.append(f"{Regime.QUEUE} {queue.verdict}{dagger(Regime.QUEUE)}")
    return ", ".join(said) or "-"


def baselines_table(records: Sequence[Record]) -> Table:
    """A line for each baseline or control: what became of it, and how often it was the best."""
    table = _table("baselines, alternatives and controls")
    for name in ("implementation", "role", "outcomes", "best of, caught", "example"):
        table.add_column(name)
    best = Counter({r.case_id: r.best_baseline for r in records if r.best_baseline}.values())
    others = (r for r in records if r.role is not Role.CANDIDATE)
    for (name, role), rows in grouped(others, lambda r: (r.implementation, r.role)).items():
        reasons = [r.diagnosis or r.reason for r in rows if r.status is not Status.OK]
        example = shown(reasons[0]) if reasons else ""
        if len(example) > MOST_CHARACTERS:
            example = f"{example[: MOST_CHARACTERS - 1]}…"
        caught = _counts(r.caught for r in rows)
        outcomes = _counts(r.status for r in rows)
        table.add_row(
            shown(name),
            role,
            outcomes,
            caught if role is Role.CONTROL else str(best[name]),
            example,
        )
    return table


def _counts(words: Iterator[str | None]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(Counter(map(str, words)).items()))


def _table(title: str) -> Table:
    return Table(
        title=title, title_justify="left", header_style="bold", box=SIMPLE_HEAD, pad_edge=False
    )
