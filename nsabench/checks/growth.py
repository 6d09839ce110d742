"""Compare how times and their compulsory work grow along a length series."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from nsabench import labels
from nsabench.checks.cases import best_baseline, by_case, length_series, length_text
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.roofline import DeviceLimits, find_beaten, find_impossible, least_time
from nsabench.model.record import Record
from nsabench.model.vocabulary import Role

# A cliff: times the square of the work's growth. In three runs on an H200, uncompiled FlexAttention
# took 15 to 44 times, and everything else at most twice.
LEAP = 8.0
IN_THE_RUNNING = 2.0  # times the best baseline at the foot: it may be the best at greater lengths

GROWTH_OF_WORK = 4.0
FLAT = 1.1  # a time that grows less than this over such growth of work is flat.
FILLED = 0.5  # if its work alone takes this share of a time, a flat time is suspicious.
# Work below this can hide behind launches and the latency of the first loads.
LAUNCH_FLOOR_MS = 0.02


def check_cliff(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """A time that grows far more than its work is probably another program's.

    Libraries silently fall back to uncompiled code, or to another backend. An honest kernel grows
    at most by the square of its work.
    """
    possible = [
        r
        for r in records
        if r.role is not Role.CONTROL and r.median_ms and not any(find_impossible(r, limits))
    ]
    cases = by_case(possible)
    return [finding for series in length_series(possible) for finding in _find_tops(series, cases)]


def _find_tops(series: list[Record], cases: dict[str, list[Record]]) -> Iterator[Finding]:
    """Find the records after a leap, until one is faster than the edge."""
    foot, edge = series[0], None
    for record in series[1:]:
        if _leaps(foot, record):
            edge = edge or record
        elif edge is None or _ms(record) < _ms(edge):
            foot, edge = record, None
        if edge is None:
            continue
        # If the baseline may be the best, the whole case is in doubt.
        best = best_baseline(cases[foot.case_id])
        if record.role is Role.BASELINE and best and _ms(foot) <= IN_THE_RUNNING * _ms(best):
            sentence = (
                f"{_describe_cliff(foot, edge)}; without that it may be the best baseline here"
            )
            yield Finding("cliff", Effect.INCONCLUSIVE, sentence, record.case_id)
        else:
            yield Finding("cliff", Effect.NOTE, _describe_cliff(foot, edge), *record.key)


def _leaps(foot: Record, record: Record) -> bool:
    return _ms(record) > LEAP * _growth(foot, record) ** 2 * _ms(foot)


def _growth(foot: Record, record: Record) -> float:
    return max(
        record.length / foot.length,
        record.bytes_min / foot.bytes_min,
        record.flops / max(foot.flops, 1),
    )


def _describe_cliff(foot: Record, edge: Record) -> str:
    return (
        f"{edge.implementation} takes {_ms(foot):.3g} ms at {length_text(foot)} but "
        f"{_ms(edge):.3g} ms at {length_text(edge)}: {_ms(edge) / _ms(foot):.0f} times as long for "
        f"{_growth(foot, edge):.1f} times the work looks like another program (uncompiled, or "
        f"another backend)"
    )


def _ms(record: Record) -> float:
    assert record.median_ms is not None
    return record.median_ms


def check_scaling(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """A time must grow with its compulsory work once the work exceeds the launch cost.

    If the work fills half of a time, four times the work does not fit into the same time.
    """
    flats = (_find_longest_flat(series, limits) for series in length_series(records))
    return [finding for finding in flats if finding is not None]


def _find_longest_flat(series: list[Record], limits: DeviceLimits) -> Finding | None:
    for top in reversed(series):
        for bottom in series:
            if top.bytes_min / bottom.bytes_min < GROWTH_OF_WORK:
                break
            if _ms(top) < FLAT * _ms(bottom):
                finding = _weigh_flat(bottom, top, limits)
                if finding is not None:
                    return finding
    return None


def _weigh_flat(bottom: Record, top: Record, limits: DeviceLimits) -> Finding | None:
    cold, effect = least_time(top, limits, l2_bytes=0), Effect.NOTE
    why = "without known ceilings it cannot be told from launch cost"
    if cold is not None:
        if cold.ms < LAUNCH_FLOOR_MS or cold.ms < FILLED * _ms(top):
            return None
        effect = Effect.IMPLAUSIBLE if find_beaten(top, limits) else Effect.INCONCLUSIVE
        why = f"from memory {cold.why} take {cold.ms:.3g} ms"
        if effect is Effect.INCONCLUSIVE and limits.l2_bytes:
            why += "; only a warm L2 could explain it"
    sentence = (
        f"time is flat while work grows: {_ms(bottom):.3g} ms at {length_text(bottom)} and "
        f"{_ms(top):.3g} ms at {length_text(top)} ({labels.case(top)}), for "
        f"{top.bytes_min / bottom.bytes_min:.1f} times the bytes; {why}"
    )
    return Finding("scaling", effect, sentence, *top.key)
