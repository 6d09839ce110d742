"""The tables of a run that need only its records."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Regime, Role, Status
from nsabench.output import grouped
from nsabench.output.document import Block, Name, Ours, Sentence, Table, Tag, number

COLUMNS = (
    *("case", "candidate", "status", "MAE", "ms", "queued", "host µs", "of roofline"),
    *("best baseline", "baseline ms", "speed-up [95 %]", "verdict"),
)
TEXTS = ("case", "candidate", "status", "best baseline", "verdict")
MARKS = {
    "*": "* no control showed that each check behind it works: see `unproven`",
    "†": f"† {NO_SPECIALISED}: a ratio over 3, over masks, gathers or FlexAttention alone",
}
MOST_CHARACTERS = 100  # of an example


def candidates(records: Sequence[Record]) -> Table:
    by_key = {r.key: r for r in records}
    rows = []
    for r in records:
        if r.role is Role.CANDIDATE:
            cells = _format_cells(r, by_key.get((r.case_id, r.best_baseline)))
            rows.append([cells[column] for column in COLUMNS])
    numbers = [Ours(column) for column in COLUMNS if column not in TEXTS]
    return Table("candidates", list(map(Ours, COLUMNS)), rows, numbers)


def _format_cells(r: Record, baseline: Record | None) -> dict[str, str]:
    ratio = number(r.speedup, ".3f")
    decides = r.verdict if r.verdict and r.median_ms is not None else "note"
    verdict = Tag(standing(r).replace(" ", "\n"), decides)
    interval = f" [{r.speedup_lo:.3f}, {r.speedup_hi:.3f}]" if r.speedup is not None else ""
    return {
        "case": labels.case(r),
        "candidate": Name(r.implementation),
        "status": Tag(r.status),
        "MAE": number(r.mae, ".1e"),
        "ms": number(r.median_ms, ".4g"),
        "queued": number(r.median_in(Regime.QUEUE), ".4g"),
        "host µs": number(r.host_us, ".0f"),
        "of roofline": number(r.roofline_fraction, ".0%"),
        "best baseline": Name(r.best_baseline) if r.best_baseline else "–",
        "baseline ms": number(baseline.median_ms if baseline else None, ".4g"),
        "speed-up [95 %]": Ours(ratio + interval),
        "verdict": verdict,
    }


def _build_narrow(op: str, records: Sequence[Record]) -> Table:
    """Return a line for each case and candidate. Sizes that vary and regimes are columns."""
    traits = [_list_traits(r) for r in records]
    varying = [name for name in traits[0] if len({trait.get(name) for trait in traits}) > 1]
    regimes = [x for x in Regime if any(r.compared(x) for r in records)] or [records[0].regime]
    rows = []
    for r, trait in zip(records, traits, strict=True):
        verdicts = [_format_verdict(r, regime) for regime in regimes]
        if r.status is not Status.OK:
            verdicts[0] = Tag(r.status)
        sizes = [trait.get(name) or "–" for name in varying]
        rows.append([*sizes, Name(r.implementation), number(r.median_ms, ".4g"), *verdicts])
    constant = labels.constant(records).get(op, ())
    title = " ".join([op, *(constant if varying else labels.words(records[0]))])
    columns = [*varying, "candidate", "ms", *(f"{regime} ×" for regime in regimes)]
    return Table(title, list(map(Ours, columns)), rows, [*varying, "ms"])


def _list_traits(record: Record) -> dict[str, str]:
    sizes = {name: str(size) for name, size in record.shape.items() if size is not None}
    if sizes.get("Dv") == sizes.get("D"):
        sizes.pop("Dv", None)
    dtype = labels.SHORT[record.dtype]
    others = {"direction": record.direction, "distribution": record.distribution}
    return sizes | {"dtype": dtype, **others, "mode": record.mode}


def _format_verdict(record: Record, regime: Regime) -> str:
    found = record.compared(regime)
    if found is None or not found.verdict or record.median_ms is None:
        return "not timed" if record.median_ms is None else "–"
    ratio = "" if found.ratio is None else f"{found.ratio:.2f} "
    return Tag(f"{ratio}{found.verdict}{_mark(record, regime)}", found.verdict)


def _mark(record: Record, regime: Regime) -> str:
    star = "*" if regime is record.regime and record.unproven_verdict else ""
    return star + ("†" if record.caution_in(regime) else "")


def standing(record: Record) -> str:
    """Return the verdict of each regime, with marks for unproven checks and cautions."""
    if record.status is Status.OK and record.median_ms is None:
        return "not timed"
    verdicts = []
    for regime in (record.regime, Regime.QUEUE):
        found = record.compared(regime)
        if found is not None and found.verdict:
            verdicts.append(f"{regime} {found.verdict}{_mark(record, regime)}")
    return ", ".join(verdicts) or "-"


def candidates_on_terminal(records: Sequence[Record], *, wide: bool) -> Iterator[Block]:
    """Yield the tables and the meaning of their marks. wide: all columns, in 160 characters."""
    if wide:
        yield candidates(records)
    else:
        judged = (r for r in records if r.role is Role.CANDIDATE)
        yield from (_build_narrow(op, own) for op, own in grouped(judged, lambda r: r.op).items())
    yield from (Sentence(text, "dim") for text in explain_marks(records))


def explain_marks(records: Sequence[Record]) -> list[str]:
    standings = "".join(standing(r) for r in records if r.median_ms is not None)
    return [text for mark, text in MARKS.items() if mark in standings]


def others(records: Sequence[Record]) -> Table:
    best = Counter({r.case_id: r.best_baseline for r in records if r.best_baseline}.values())
    rows = []
    rest = (r for r in records if r.role is not Role.CANDIDATE)
    for (name, role), own in grouped(rest, lambda r: (r.implementation, r.role)).items():
        reasons = [r.diagnosis or r.reason for r in own if r.status is not Status.OK]
        example = reasons[0] if reasons else ""
        if len(example) > MOST_CHARACTERS:
            example = f"{example[: MOST_CHARACTERS - 1]}…"
        caught = _count_words(r.caught for r in own) if role is Role.CONTROL else str(best[name])
        rows.append((Name(name), role, _count_words(r.status for r in own), caught, example))
    columns = ("implementation", "role", "outcomes", "best of, caught", "example")
    return Table("baselines, alternatives and controls", columns, rows)


def _count_words(words: Iterable[str | None]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(Counter(map(str, words)).items()))


def parity(records: Iterable[Record]) -> Table:
    rows = [
        (
            Name(name),
            role,
            dtype,
            str(sum(r.mae is not None for r in own)),
            str(sum(r.status is Status.WRONG for r in own)),
            _format_worst(r.mae for r in own),
            _format_worst(r.rel_l2 for r in own),
            _format_worst(r.worst_row for r in own),
        )
        for (name, role, dtype), own in grouped(
            records, lambda r: (r.implementation, r.role, r.dtype)
        ).items()
    ]
    errors = ("worst MAE", "worst relative L2", "of one row")
    return Table("Parity", ("implementation", "role", "dtype", "compared", "wrong", *errors), rows)


def _format_worst(errors: Iterable[float | None]) -> str:
    return number(max((error for error in errors if error is not None), default=None), ".2e")
