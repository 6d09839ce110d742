"""The tables at the end of a run: candidates, and what they were held against."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from nsabench.assessment import labels
from nsabench.assessment.caution import beside
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Regime, Role, Status, Verdict
from nsabench.text import shown

STYLES = {
    Status.OK: "green",
    Status.SKIPPED: "dim",
    Status.UNSUPPORTED: "dim",
    Verdict.FASTER: "bold green",
    Verdict.SLOWER: "red",
    Verdict.SAME: "cyan",
    Verdict.INCONCLUSIVE: "yellow",
    Verdict.INVALID: "bold red",
}


# What stands behind a verdict, and what it means.
MARKS = {
    "*": "* no control showed that each check behind it works: see `unproven`",
    "†": f"† {NO_SPECIALISED}: a ratio over 3, over masks, gathers or FlexAttention alone",
}
WIDE = 120  # a terminal that has room for the error, the status and the interval
WIDER = 160  # one that has room for every column
VERY_WIDE = 200  # one that has room for a verdict beside its regime
NARROW = ("case", "candidate", "ms", "baseline\nms", "speed-up", "verdict")
# With these, too, names would be broken into pieces of three letters.
HOST = "host µs,\nlaunches"
ONLY_WIDER = ("queued", HOST, "best baseline")


def candidates_table(records: Sequence[Record], width: int = WIDE) -> Table:
    """One line a case and candidate, with the baseline it has to beat. width: of the terminal; a
    narrow one gets the columns that decide, one below 160 no names of baselines."""
    narrow, all_of_them = width < WIDE, width >= WIDER
    table = Table(
        title="candidates",
        title_justify="left",
        header_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    columns = (
        ("case", "left"),
        ("candidate", "left"),
        ("status", "left"),
        ("MAE", "right"),
        ("ms", "right"),
        ("queued", "right"),
        (HOST, "right"),
        ("of\nroofline", "right"),
        ("best baseline", "left"),
        ("its ms" if all_of_them else "baseline\nms", "right"),
        ("speed-up" if narrow else "speed-up [95 %]", "right"),
        ("verdict", "left"),
    )
    kept = [
        n
        for n, (name, _) in enumerate(columns)
        if all_of_them or (name in NARROW if narrow else name not in ONLY_WIDER)
    ]
    for name, justify in (columns[n] for n in kept):
        # Words may take a second line; a number that is cut off is none.
        long = name in ("case", "candidate", "best baseline")
        table.add_column(name, justify=justify, no_wrap=not long, overflow="fold")  # type: ignore[arg-type]
    times = {r.key: r.median_ms for r in records}
    for r in records:
        if r.role is not Role.CANDIDATE:
            continue
        cells = (
            shown(labels.case(r)),
            shown(r.implementation),
            Text(r.status, STYLES.get(r.status, "bold red")),
            number(r.mae, ".1e"),
            number(r.median_ms, ".4g"),
            number(r.queued_ms, ".4g"),
            _host(r, width),
            number(r.roofline_fraction, ".0%"),
            shown(r.best_baseline),
            number(times.get((r.case_id, r.best_baseline)), ".4g"),
            _ratio(r, narrow=narrow),
            _standing(r, width),
        )
        table.add_row(*(cells[n] for n in kept))
    timed = [r for r in records if r.median_ms is not None]
    said = [text for mark, text in MARKS.items() if any(mark in standing(r) for r in timed)]
    if said:
        table.caption = "\n".join(said)
        table.caption_justify = "left"
    return table


def _host(r: Record, width: int) -> str:
    """How long a call holds the CPU, and in how many launches: `422, 13`; with its 20 and 80 %
    quantiles where there is room."""
    if r.host_us is None:
        return "-"
    said = f"{r.host_us:.0f}"
    if width >= VERY_WIDE and r.host_p20_us is not None and r.host_p80_us is not None:
        said += f" [{r.host_p20_us:.0f}, {r.host_p80_us:.0f}]"
    return said if r.launches is None else f"{said}, {r.launches}"


def _ratio(r: Record, *, narrow: bool) -> str:
    if r.speedup is None:
        return ""
    if narrow:
        return f"{r.speedup:.2f}"
    return f"{r.speedup:.3f} [{r.speedup_lo:.3f}, {r.speedup_hi:.3f}]"


def _standing(r: Record, width: int) -> Text:
    """The verdict; where there is no column for the status, that of what is not ok."""
    if width < WIDE and r.status is not Status.OK:
        return Text(r.status, STYLES.get(r.status, "bold red"))
    narrow = width < VERY_WIDE and r.median_ms is not None
    said = standing(r).replace(" ", "\n") if narrow else standing(r)
    return Text(said, STYLES[r.verdict] if r.verdict and r.median_ms is not None else "dim")


def _mark(record: Record, regime: Regime) -> str:
    """The dagger of the verdict whose ratio it is that needs it."""
    return "†" * bool(beside(record, regime))


def standing(record: Record) -> str:
    """The verdict of each regime, marked where a check behind it was not shown to work, and where
    something is to be borne in mind."""
    if record.status is Status.OK and record.median_ms is None:
        return "not timed"
    mark = "*" * record.unproven_verdict + _mark(record, record.regime)
    said = [f"{record.regime} {record.verdict}{mark}"] if record.verdict else []
    if record.queue_verdict:
        said.append(f"{Regime.QUEUE} {record.queue_verdict}{_mark(record, Regime.QUEUE)}")
    return ", ".join(said) or "-"


def baselines_table(records: Sequence[Record]) -> Table:
    """One line a baseline or control: how often it was what, and how often it was the best."""
    table = Table(
        title="baselines, alternatives and controls", title_justify="left", header_style="bold"
    )
    for name in ("implementation", "role", "outcomes", "best of, caught", "example"):
        table.add_column(name)
    best = Counter(
        r.best_baseline for r in {r.case_id: r for r in records if r.best_baseline}.values()
    )
    groups: dict[tuple[str, str], list[Record]] = {}
    for r in records:
        if r.role is not Role.CANDIDATE:
            groups.setdefault((r.implementation, r.role), []).append(r)
    for (name, role), rows in groups.items():
        counts = Counter(r.status for r in rows)
        reasons = [r.diagnosis or r.reason for r in rows if r.status is not Status.OK]
        table.add_row(
            shown(name),
            role,
            ", ".join(f"{n} {status}" for status, n in sorted(counts.items())),
            _catches(rows) if role == Role.CONTROL else str(best[name]),
            _short(shown(reasons[0])) if reasons else "",
        )
    return table


def _short(text: str, most: int = 100) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def _catches(rows: Sequence[Record]) -> str:
    counts = Counter(r.caught for r in rows)
    return ", ".join(f"{n} {caught}" for caught, n in sorted(counts.items()))


def number(value: float | None, form: str) -> str:
    return "-" if value is None else format(value, form)
