"""Parity: compare every implementation with the float64 oracle on the same inputs."""

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

# Spacing of the format at 1 (2^-mantissa bits). Rounding alone gives a relative error of about 0.3
# of it, so ratios of smaller errors mean nothing.
EPSILON = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT32: 2.0**-23}
# On tensor cores, three TF32 products replace one in float32, and each sum of 8 terms is truncated.
# A tile of at most so many terms is summed there before it is added in float32.
TRUNCATIONS_A_TERM, TILE = 3 / 8, 64


def noise(dtype: DType, terms: int) -> float:
    """Return the relative error that an honest float32 sum of so many terms may have.

    It is the greatest of three errors. The first is rounding to the format. The second is
    sqrt(terms) float32 roundings: the error of a sum in any order grows as the root of its length
    (Higham and Mary 2019, probabilistic rounding error analysis). The third is the truncations in
    one tile of a tensor core, which do not cancel (Ootomo and Yokota 2022, recovering single
    precision accuracy from Tensor Cores). The last two matter for float32 only. On an H200,
    seven honest implementations were off by 1.3e-7 to 6.1e-7 on the same inputs. SDPA on 32 keys of
    head dim 16 is off by 8.8e-7, seven roundings of such a sum.
    """
    truncated = TRUNCATIONS_A_TERM * min(terms, TILE)
    return max(EPSILON[dtype], max(math.sqrt(terms), truncated) * EPSILON[DType.FLOAT32])


# The allowed error of a row of an honest result, in units of that noise. The most that was seen on
# an H200 is 1.9 in output, 8.3 in dq, 1.2 in dk and dv (docs/lab/worst_rows.md). On a CPU it is
# 3.4, 1.8 and 1.7 in dq, dk and dv. Only scores too large for float32 gave more.
ROW_NOISE = {
    OUTPUT: 2.0,  # the output and the weights are rounded, by a third of the spacing each.
    "dv": 4.0,  # like an output, summed over the queries and perhaps a group of heads.
    # Many queries see a key, and its terms cancel only for a query that sees few others.
    "dk": 8.0,
}
# The terms of dq cancel: they are large for a query with few keys, and the values saved by the
# forward are rounded. The terms of any other gradient may also cancel.
ROW_NOISE_OF_A_GRADIENT = 16.0
# The least norm that an error is relative to, in units of a typical row. In dv nothing cancels, and
# rows differ by a factor of 100, because under a causal mask one query sees the last key. So errors
# are relative to the row's own norm. Below this norm a weight may underflow.
LEAST_ROW = {"dv": 1 / 64}
# A baseline excuses three times its own error, up to so much noise. In float32, 19 was needed.
ROW_RATIO, MOST_EXCUSED = 3.0, 32.0


def result_of(row_at: str) -> str:
    """Return the result of a row: `dk` for `dk[0, 7, 1]`."""
    return row_at.partition("[")[0]


def row_ratio(result: str) -> float:
    """Return the allowed error of a row of an honest result, in units of its noise."""
    return ROW_NOISE.get(result, ROW_NOISE_OF_A_GRADIENT)


def least_row(result: str) -> float:
    """Return the least norm that an error is relative to, in units of a typical row."""
    return LEAST_ROW.get(result, 1.0)


def row_noise(result: str, dtype: DType, terms: int) -> float:
    """Return the relative error that a row of an honest result may have."""
    return row_ratio(result) * noise(dtype, terms)


def is_seen(result: str, of_typical: float, resolved: float) -> bool:
    """Return whether a lost row is always found wrong, whatever the errors of baselines.

    of_typical: its norm, in units of a typical row. resolved: the noise of a sum.
    """
    return of_typical > min(max(least_row(result), of_typical) * MOST_EXCUSED, 1.0) * resolved


ORACLE = "the float64 oracle"
BEST = "the best valid baseline"


def check(rows: Sequence[Record], limits: Limits) -> list[Finding]:
    """Find `ok` records over the MAE tolerance, or much further from the oracle than the best
    baseline, as a whole or in one row."""
    cases = by_case(r for r in rows if r.status is Status.OK)
    return [finding for case in cases.values() for finding in _check_case(case)]


def _check_case(rows: list[Record]) -> Iterator[Finding]:
    valid = [r for r in rows if r.role is Role.BASELINE and _may_excuse(r)]
    # A baseline that runs only for a control excuses only controls.
    for_controls = _find_best(valid)
    for_others = _find_best([r for r in valid if not r.alongside])
    for row in rows:
        best, best_row = for_controls if row.role is Role.CONTROL else for_others
        if row.computes:
            best, best_row = None, None  # baselines compute another function
        sentence = _check_whole(row, best) or _check_worst_row(row, best_row)
        if sentence:
            yield Finding("parity", Effect.WRONG, sentence, *row.key)


def _find_best(baselines: Sequence[Record]) -> tuple[float | None, Record | None]:
    return (
        min((r.rel_l2 for r in baselines if r.rel_l2 is not None), default=None),
        min((r for r in baselines if r.worst_row is not None), key=_relative_error, default=None),
    )


def _may_excuse(baseline: Record) -> bool:
    """Return whether a baseline's errors may excuse others: they must be small."""
    errors = [e for e in (baseline.rel_l2, baseline.worst_row) if e is not None]
    if _is_over(baseline) or not errors:  # a table from elsewhere has only times
        return not _is_over(baseline)
    return max(errors) <= MOST_EXCUSED * noise(baseline.dtype, _count_terms(baseline))


def _check_whole(row: Record, best: float | None) -> str:
    if _is_over(row):
        return (
            f"mean absolute error {row.mae:.3g} against {ORACLE} is over the "
            f"tolerance of {row.tolerances.mae:.3g}"
        )
    if row.rel_l2 is None:
        return ""
    epsilon = noise(row.dtype, _count_terms(row))
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


def _check_worst_row(row: Record, best: Record | None) -> str:
    if row.worst_row is None:
        return ""
    epsilon = noise(row.dtype, _count_terms(row))
    honest = row_noise(_find_result(row), row.dtype, _count_terms(row))
    excused = ROW_RATIO * _relative_error(best) * honest if best else 0.0
    limit = max(min(excused, MOST_EXCUSED * epsilon), honest)
    if row.worst_row <= limit:
        return ""
    known = f"{BEST} has {best.worst_row:.3g} in its worst row, " if best else ""
    return (
        f"the row {row.worst_row_at} is off by {row.worst_row:.3g} of its norm, over {limit:.3g}: "
        f"{known}{row.dtype} explains {honest:.3g}"
    )


def _relative_error(row: Record) -> float:
    assert row.worst_row is not None
    return row.worst_row / row_noise(_find_result(row), row.dtype, _count_terms(row))


def _find_result(row: Record) -> str:
    return result_of(row.worst_row_at) or (OUTPUT if row.direction is Direction.FORWARD else "")


def _count_terms(row: Record) -> int:
    return _count_terms_of(ops.get(row.computes or row.op), tuple(row.shape.items()))


@lru_cache(maxsize=4096)
def _count_terms_of(op: Op, sizes: tuple[tuple[str, int], ...]) -> int:
    known = {size: n for size, n in sizes if size in op.shape_model.model_fields}
    return op.terms(op.shape_model.model_validate(known))


def _is_over(row: Record) -> bool:
    # Written so that NaN never passes.
    return row.mae is not None and not row.mae <= row.tolerances.mae
