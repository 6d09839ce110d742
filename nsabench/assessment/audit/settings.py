"""Which other columns tell cases apart whose sizes coincide: batch, causal, seed, ...

A table may have columns that nobody here has heard of. Two lines that agree in all that is known
are one case measured twice, unless such a column says that they are two.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

# Columns that say what came out, and not what went in: by a word of their name.
RESULT = re.compile(
    r"err|errors?|diff|deviation|mae|mse|rmse|rel|std|stdev|stddev|variance|cv|ci|[pq]\d+|median|"
    r"avg|average|best|winner|faster|slower|speedup|[tg]flops?|flops|gbps|bandwidth|bw|throughput|"
    r"util|utilization|occupancy|mfu|roofline|efficiency|percent|pct|mem|memory|bytes|peak|power|"
    r"energy|joules|watts|temp|temperature|clock|mhz|compile|reason|notes?|comment|remark|ok|"
    r"passed|correct|match|allclose|valid|actual|expected|samples"
)
# Columns that say that the same was done once more: by their whole name.
REPEAT = re.compile(
    r"#|id|idx|index|no|nr|row|line|run|run_id|reps?|repeat|repetition|trial|attempt|round|iter|"
    r"iteration|timestamp|date|time"
)


def telling_apart(
    lines: Sequence[Mapping[str, str]], known: Sequence[str], columns: Sequence[str]
) -> list[str]:
    """The fewest of `columns` that tell lines apart which agree in what is known of them.

    known: of each line, what is known of its case, in words.
    """
    candidates = [c for c in columns if _is_setting(c, [line.get(c, "") for line in lines])]
    # One that follows from another, a product of batch and length say, has more values than it.
    candidates.sort(key=lambda c: len({line.get(c) for line in lines}))
    cases: list[tuple[str, ...]] = [(words,) for words in known]
    telling = []
    for column in candidates:
        if len(set(cases)) == len(lines):
            break
        finer = [(*case, line.get(column, "")) for case, line in zip(cases, lines, strict=True)]
        if len(set(finer)) > len(set(cases)):
            telling.append(column)
            cases = finer
    return [column for column in columns if column in telling]


def _is_setting(column: str, cells: Sequence[str]) -> bool:
    name = re.sub(r"[\s\-.]+", "_", column.strip().lower())
    if REPEAT.fullmatch(name) or any(map(RESULT.fullmatch, re.split(r"[_/()%]+", name))):
        return False
    # What was measured is a fraction and comes but once.
    filled = [cell for cell in cells if cell]
    return not any(map(_is_fraction, filled)) or 2 * len(set(filled)) <= len(filled)


def _is_fraction(cell: str) -> bool:
    try:
        return not float(cell).is_integer()
    except (ValueError, OverflowError):
        return False
