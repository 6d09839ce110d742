from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from nsabench import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Reference, Regime, Role, Status
from nsabench.output import grouped
from nsabench.output.document import Block, Name, Ours, Sentence, TableBlock, Tag, number
from nsabench.output.standing import judge

MARKS = {
    "*": "* controls did not show that all checks behind this verdict work: see `unproven`",
    "‡": "‡ ratio to the best alternative, since no baseline was timed",
    "†": f"† {NO_SPECIALISED}: a ratio over 3, and only to masks, gathers or FlexAttention",
}
MOST_CHARACTERS = 100  # the longest example


def candidates(records: Sequence[Record], *, wide: bool) -> Iterator[Block]:
    """Yield a table for each op (`wide`: with all columns), and the meaning of the marks."""
    by_key = {r.key: r for r in records}
    judged = [r for r in records if r.role is Role.CANDIDATE]
    tables = [
        _build_table(op, own, by_key if wide else None)
        for op, own in grouped(judged, lambda r: r.op).items()
    ]
    yield from tables
    cells = "".join(cell for table in tables for row in table.rows for cell in row[-2:])
    yield from (Sentence(text, "dim") for mark, text in MARKS.items() if mark in cells)


def _build_table(
    op: str, records: Sequence[Record], all_records: dict[tuple[str, str], Record] | None
) -> TableBlock:
    traits = [_list_traits(r) for r in records]
    names = dict.fromkeys(name for trait in traits for name in trait)
    varying = [name for name in names if len({trait.get(name) for trait in traits}) > 1]
    regimes = [x for x in Regime if any(r.comparison(x).verdict for r in records)]
    regimes = regimes or [records[0].regime]
    rows, numbers = [], dict.fromkeys([*varying, "ms"])
    for r, trait in zip(records, traits, strict=True):
        cells = {name: trait.get(name) or "–" for name in varying}
        cells |= {"candidate": Name(r.implementation), "ms": number(r.median_ms, ".4g")}
        if all_records is not None:
            more = _list_details(r, all_records.get((r.case_id, r.best_baseline)))
            cells |= more
            numbers |= dict.fromkeys(more)
        cells |= {f"{x} ×": _format_verdict(r, x, wide=all_records is not None) for x in regimes}
        if r.status is not Status.OK:
            cells[f"{regimes[0]} ×"] = Tag(r.status)
        rows.append(cells)
    constant = labels.constant(records).get(op, ())
    title = " ".join([op, *(constant if varying else labels.words(records[0]))])
    lines = [list(cells.values()) for cells in rows]
    return TableBlock(title, list(map(Ours, rows[0])), lines, list(numbers))


def _list_traits(record: Record) -> dict[str, str]:
    sizes = {name: str(size) for name, size in record.shape.items() if size is not None}
    if sizes.get("Dv") == sizes.get("D"):
        sizes.pop("Dv", None)
    dtype = labels.SHORT[record.dtype]
    others = {"direction": record.direction, "distribution": record.distribution}
    return sizes | {"dtype": dtype, **others, "mode": record.mode}


def _list_details(record: Record, baseline: Record | None) -> dict[str, str]:
    return {
        "queued": number(record.median_in(Regime.QUEUE), ".4g"),
        "host µs": number(record.host_us, ".0f"),
        "of roofline": number(record.roofline_fraction, ".0%"),
        "MAE": number(record.mae, ".1e"),
        "best baseline": Name(record.best_baseline) if record.best_baseline else "–",
        "baseline ms": number(baseline.median_ms if baseline else None, ".4g"),
    }


def _format_verdict(record: Record, regime: Regime, *, wide: bool) -> str:
    found = record.compared_best(regime)
    if record.median_ms is None:
        return "not timed" if record.status is Status.OK else "–"
    if found is None or (found.reference is Reference.BASELINE and not found.verdict):
        return "–"
    ratio = "" if found.ratio is None else f"{found.ratio:.2f} "
    if wide and found.lo is not None and found.hi is not None:
        ratio += f"[{found.lo:.2f}, {found.hi:.2f}] "
    if found.reference is Reference.ALTERNATIVE:
        return Tag(f"{ratio.strip()}‡", judge(found))  # in the colour of a verdict
    star = "*" if regime is record.regime and record.unproven_verdict else ""
    dagger = "†" if record.caution_in(regime) else ""
    return Tag(f"{ratio}{found.verdict}{star}{dagger}", found.verdict or "")


def others(records: Sequence[Record]) -> TableBlock:
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
    return TableBlock("baselines, alternatives and controls", columns, rows)


def _count_words(words: Iterable[str | None]) -> str:
    return ", ".join(f"{n} {word}" for word, n in sorted(Counter(map(str, words)).items()))
