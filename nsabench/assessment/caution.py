"""What a reader must bear in mind beside a verdict: a great ratio over baselines none of which was
made for the op says what a mask or a gather costs, and not what a kernel gains over another."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from nsabench import ops
from nsabench.assessment.checks.row import Row
from nsabench.assessment.verdict import NOT_JUDGED, Judgement
from nsabench.model.record import Record
from nsabench.model.vocabulary import NO_SPECIALISED, Kind, Regime, Role, Status

GREAT = 3.0  # a ratio above it is asked whom it is over
# Times the best: what was made for the op and takes longer shows nothing of what can be.
BEHIND = 2.0
# The baselines that ship and are general, by op: what a run that was made before kinds were
# recorded says of them. `decode` is an op that was retired since.
_SHIPPED_GENERAL = {
    "compressed": ("masked_sdpa", "flex_attention"),
    "decode": ("torch_step",),
    "decode_selected": ("gathered_sdpa",),
    "decode_step": ("torch_step",),
    "nsa_attention": ("torch_nsa",),
    "selection_blocks": ("masked_sdpa", "gathered_sdpa", "flex_attention"),
    "selection_ranges": (
        *("masked_sdpa", "packed_sdpa", "packed_sdpa_unmasked", "flex_attention"),
        *("flash_varlen", "flash_varlen_gqa"),
    ),
    "selection_varlen": ("masked_sdpa", "packed_sdpa"),
    "sliding_window": ("masked_sdpa", "flex_attention"),
}


def caution(row: Row, case: Sequence[Row], judgement: Judgement) -> str:
    """Of a candidate whose ratio is great in some regime, if all that was timed beside it in its
    case is general, or specialised and far behind: `NO_SPECIALISED`. Empty otherwise, and where
    kinds were not recorded."""
    judged = (judgement, judgement.queue or NOT_JUDGED)
    if not any(j.speedup is not None and j.speedup > GREAT for j in judged):
        return ""
    return unspecialised(r for r in case if r.session == row.session)


def speedups(records: Iterable[Record], regime: Regime) -> list[float]:
    """The ratios that an average in a regime is made of. One over a slow loop alone says nothing of
    the kernel, and is left out."""
    judged = [r.judged_in(regime) for r in records if not beside(r, regime)]
    return [one[1] for one in judged if one is not None and one[1] is not None]


def unspecialised(rows: Iterable[Row]) -> str:
    """`NO_SPECIALISED` where no baseline among the rows that was timed is more than general."""
    timed = [
        (r.kind, r.timed_ms)
        for r in rows
        if r.role is Role.BASELINE and not r.alongside and r.timed_ms is not None
    ]
    return NO_SPECIALISED if all_general(timed) else ""


def all_general(timed: Sequence[tuple[Kind | None, float]]) -> bool:
    """Whether all baselines that count are general, of kinds and times (ms). A specialised one that
    takes more than twice as long as the best counts for none."""
    best = min((ms for _, ms in timed), default=0.0)
    counting = {k for k, ms in timed if k is not Kind.SPECIALISED or ms <= BEHIND * best}
    return counting == {Kind.GENERAL}


def beside(record: Record, regime: Regime) -> str:
    """What is to be borne in mind beside the verdict in a regime: a record's caution stands beside
    the ratio that is great, and not beside one of another regime."""
    judged = record.judged_in(regime)
    great = judged is not None and judged[1] is not None and judged[1] > GREAT
    return record.caution if great else ""


def tally(cautions: Iterable[str]) -> str:
    """How many of them say what: `no specialised baseline in 3 of 16`; empty where none does."""
    given = list(cautions)
    counts = Counter(text for text in given if text)
    return "; ".join(f"{text} in {n} of {len(given)}" for text, n in counts.items())


def recalled(records: Sequence[Record]) -> list[Record]:
    """The records with the cautions that a run from before kinds were recorded would have: the
    kinds of the baselines that ship are known by their names. Others stay as they are."""
    if all(r.kind is not None for r in records if r.role is Role.BASELINE):
        return list(records)
    known = [_with_kind(r) if _lacks_kind(r) else r for r in records]
    timed: dict[tuple[str, int], list[tuple[Kind | None, float]]] = {}
    recalls: set[tuple[str, int]] = set()
    for before, r in zip(records, known, strict=True):
        place = r.case_id, r.session
        if r.role is Role.BASELINE and r.status is Status.OK and r.median_ms is not None:
            timed.setdefault(place, []).append((r.kind, r.median_ms))
        if r is not before:
            recalls.add(place)
    return [
        replace(r, caution=NO_SPECIALISED)
        if r.role is Role.CANDIDATE
        and not r.caution
        and (place := (r.case_id, r.session)) in recalls
        and all_general(timed.get(place, []))
        and _has_great_ratio(r)
        else r
        for r in known
    ]


def _lacks_kind(record: Record) -> bool:
    return record.role is Role.BASELINE and record.kind is None


def _with_kind(record: Record) -> Record:
    names = (record.op, ops.current_name(record.op, record.distribution))
    general = any(record.implementation in _SHIPPED_GENERAL.get(name, ()) for name in names)
    return replace(record, kind=Kind.GENERAL) if general else record


def _has_great_ratio(record: Record) -> bool:
    ratios = (record.speedup, record.queue_speedup)
    return any(ratio is not None and ratio > GREAT for ratio in ratios)
