"""Parity: candidate and baseline alike are held to the float64 oracle on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache

from nsabench import ops
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.series import by_case
from nsabench.delivery import OUTPUT
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, DType, Role, Status
from nsabench.ops import Op

# Spacing of the format at 1 (2^-mantissa bits): an output rounded to it has a relative error of
# about 0.3 of this, whatever computed it, so no ratio of errors below it means anything.
EPSILON = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT32: 2.0**-23}
# On tensor cores three products of TF32 stand for one of float32, and the sum of each 8 terms is
# truncated; a tile of at most so many terms is summed there before it is added in float32.
TRUNCATIONS_A_TERM, TILE = 3 / 8, 64


def noise(dtype: DType, terms: int) -> float:
    """The relative error that any honest float32 accumulation of so many terms may have.

    The most of: rounding to the format; sqrt(terms) float32 roundings, since the order of a sum is
    free and its error grows as the root of its length (Higham and Mary 2019, probabilistic rounding
    error analysis); the truncations in one tile of a tensor core, which do not cancel (Ootomo and
    Yokota 2022, recovering single precision accuracy from Tensor Cores). Matters for float32 only.
    Seen on an H200: seven honest implementations spread over 1.3e-7 to 6.1e-7 on the same inputs;
    SDPA on 32 keys of head dim 16 is off by 8.8e-7, seven roundings of such a sum.
    """
    truncated = TRUNCATIONS_A_TERM * min(terms, TILE)
    return max(EPSILON[dtype], max(math.sqrt(terms), truncated) * EPSILON[DType.FLOAT32])


# How far a row of an honest result may be off, in units of that noise. Seen at most: 1.9 in output,
# 8.3 in dq, 1.2 in dk and dv on an H200 (docs/lab/worst_rows.md), and on a CPU 3.4, 1.8 and 1.7 in
# dq, dk and dv. More was seen only where scores are so large that float32 does not resolve them.
ROW_NOISE = {
    OUTPUT: 2.0,  # its own rounding and that of the weights, a third of the spacing each
    "dv": 4.0,  # as an output, summed over the queries and perhaps a group of heads
    # A key's terms cancel only where a query sees few others, and it is seen by many queries.
    "dk": 8.0,
}
# The terms of dq cancel: a query with few keys has terms that are large beside a typical row, and
# what it saved of the forward is rounded. So may those of any gradient that is not known here.
ROW_NOISE_OF_A_GRADIENT = 16.0
# What a row is held to at the least, in units of a typical one. Of dv nothing cancels, and its rows
# differ by a factor of a hundred: under a causal mask the last key is seen by one query. They are
# held to their own norm, seen to be kept down to 1e-4; below this a weight may be underflow.
LEAST_ROW = {"dv": 1 / 64}
# A baseline excuses three times its own, up to so much noise: 19 was needed, in float32.
ROW_RATIO, MOST_EXCUSED = 3.0, 32.0


def result_of(row_at: str) -> str:
    """The result that a row is one of: `dk` of `dk[0, 7, 1]`."""
    return row_at.partition("[")[0]


def row_ratio(result: str) -> float:
    """How many times the noise of its sums any row of an honest result may be off."""
    return ROW_NOISE.get(result, ROW_NOISE_OF_A_GRADIENT)


def least_row(result: str) -> float:
    """The norm that a row is held to at the least, as a part of that of a typical row."""
    return LEAST_ROW.get(result, 1.0)


def row_noise(result: str, dtype: DType, terms: int) -> float:
    """The relative error that any row of an honest result may have."""
    return row_ratio(result) * noise(dtype, terms)


def is_seen(result: str, of_typical: float, resolved: float) -> bool:
    """Whether a row that is lost is found wrong, whatever the baselines are off by.

    of_typical: its norm, as a part of that of a typical row. resolved: the noise of a sum.
    """
    return of_typical > min(max(least_row(result), of_typical) * MOST_EXCUSED, 1.0) * resolved


ORACLE = "the float64 oracle"
BEST = "the best valid baseline"


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Records that are `ok` and should not be: over the MAE tolerance, or much further from the
    oracle than the best baseline of the case, as a whole or in one row."""
    cases = by_case(r for r in rows if r.status is Status.OK)
    return [finding for case in cases.values() for finding in _check_case(case)]


def _check_case(rows: list[Record]) -> Iterator[Finding]:
    valid = [r for r in rows if r.role is Role.BASELINE and _may_excuse(r)]
    # A baseline that runs for a control alone is a yardstick only for controls.
    of_controls, of_others = _best(valid), _best([r for r in valid if not r.alongside])
    for row in rows:
        best, best_row = of_controls if row.role is Role.CONTROL else of_others
        if row.computes:
            best, best_row = None, None  # baselines compute another function
        sentence = _whole(row, best) or _one_row(row, best_row)
        if sentence:
            yield Finding("parity", Effect.WRONG, sentence, *row.key)


def _best(baselines: Sequence[Record]) -> tuple[float | None, Record | None]:
    return (
        min((r.rel_l2 for r in baselines if r.rel_l2 is not None), default=None),
        min((r for r in baselines if r.worst_row is not None), key=_of_honest, default=None),
    )


def _may_excuse(baseline: Record) -> bool:
    """Whether its errors may excuse others: a baseline that is far off excuses none."""
    errors = [e for e in (baseline.rel_l2, baseline.worst_row) if e is not None]
    if _over(baseline) or not errors:  # a table from elsewhere has times alone
        return not _over(baseline)
    return max(errors) <= MOST_EXCUSED * noise(baseline.dtype, _terms(baseline))


def _whole(row: Record, best: float | None) -> str:
    if _over(row):
        return (
            f"mean absolute error {row.mae:.3g} against {ORACLE} is over the "
            f"tolerance of {row.tolerances.mae:.3g}"
        )
    if row.rel_l2 is None:
        return ""
    epsilon = noise(row.dtype, _terms(row))
    limit = row.tolerances.rel_l2_ratio * epsilon
    if best is not None:
        limit = max(min(row.tolerances.rel_l2_ratio * best, MOST_EXCUSED * epsilon), epsilon)
    if row.rel_l2 <= limit:
        return ""
    known = "there is no valid baseline" if best is None else f"{BEST} has {best:.3g}"
    return (
        f"relative L2 error {row.rel_l2:.3g} is over {limit:.3g}: {known}, "
        f"sums in {row.dtype} resolve {epsilon:.3g}"
    )


def _one_row(row: Record, best: Record | None) -> str:
    if row.worst_row is None:
        return ""
    epsilon = noise(row.dtype, _terms(row))
    honest = row_noise(_result(row), row.dtype, _terms(row))
    excused = ROW_RATIO * _of_honest(best) * honest if best else 0.0
    limit = max(min(excused, MOST_EXCUSED * epsilon), honest)
    if row.worst_row <= limit:
        return ""
    known = f"{BEST} has {best.worst_row:.3g} in its worst row, " if best else ""
    return (
        f"the row {row.worst_row_at} is off by {row.worst_row:.3g} of its norm, over {limit:.3g}: "
        f"{known}{row.dtype} explains {honest:.3g}"
    )


def _of_honest(row: Record) -> float:
    """How far off the worst row is, in units of what a row of its result may be off by."""
    assert row.worst_row is not None
    return row.worst_row / row_noise(_result(row), row.dtype, _terms(row))


def _result(row: Record) -> str:
    return result_of(row.worst_row_at) or (OUTPUT if row.direction is Direction.FORWARD else "")


def _terms(row: Record) -> int:
    return _terms_at(ops.get(row.computes or row.op), tuple(row.shape.items()))


@lru_cache(maxsize=4096)  # asked for several times a record
def _terms_at(op: Op, sizes: tuple[tuple[str, int], ...]) -> int:
    known = {size: n for size, n in sizes if size in op.shape_model.model_fields}
    return op.terms(op.shape_model.model_validate(known))


def _over(row: Record) -> bool:
    # Written so that a NaN could never pass.
    return row.mae is not None and not row.mae <= row.tolerances.mae
