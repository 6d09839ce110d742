"""Parity: candidate and baseline alike are held to the float64 oracle on the same inputs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from nsabench import ops
from nsabench.assessment.checks.cases import by_case
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.assessment.checks.limits import Limits
from nsabench.assessment.checks.row import Row
from nsabench.model.vocabulary import Direction, DType, Role, Status

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


# A row of an honest output is off by its own rounding and by that of the probabilities, a third of
# the spacing of the format each. In a gradient the terms of a row cancel: a query with few keys has
# terms that are large beside a typical row, and what it saved of the forward is rounded.
# Seen on an H200 (docs/lab/worst_rows.md): at most 1.8 in outputs and 8 in gradients, and more only
# where scores are so large that no implementation resolves them, the best baseline included.
ROW_RATIO = 3.0
ROW_NOISE = {Direction.FORWARD: 2.0, Direction.BACKWARD: 16.0}


def row_noise(direction: Direction, dtype: DType, terms: int) -> float:
    """The relative error that any row of an honest result may have."""
    return ROW_NOISE[direction] * noise(dtype, terms)


def check(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """Records that are `ok` and should not be: over the MAE tolerance, or much further from the
    oracle than the best baseline of the case, as a whole or in one row."""
    cases = by_case(r for r in rows if r.status is Status.OK)
    return [finding for case in cases.values() for finding in _check_case(case)]


def _check_case(rows: list[Row]) -> Iterator[Finding]:
    valid = [r for r in rows if r.role is Role.BASELINE and not _over(r)]
    for row in rows:
        # What is there for a control is no yardstick of anything else.
        of_it = [r for r in valid if row.role is Role.CONTROL or not r.alongside]
        best = min((r.rel_l2 for r in of_it if r.rel_l2 is not None), default=None)
        best_row = min((r.worst_row for r in of_it if r.worst_row is not None), default=None)
        sentence = _whole(row, best) or _one_row(row, best_row)
        if sentence:
            yield Finding("parity", Effect.WRONG, sentence, row.case_id, row.implementation)


def _whole(row: Row, best: float | None) -> str:
    """What is wrong with the errors of all rows together."""
    if _over(row):
        return (
            f"mean absolute error {row.mae:.3g} against {row.errors_against} is over the "
            f"tolerance of {row.mae_tolerance:.3g}"
        )
    if row.rel_l2 is None:
        return ""
    epsilon = noise(row.dtype, _terms(row))
    limit = (
        max(row.rel_l2_ratio * best, epsilon) if best is not None else row.rel_l2_ratio * epsilon
    )
    if row.rel_l2 <= limit:
        return ""
    return (
        f"relative L2 error {row.rel_l2:.3g} is over {limit:.3g}: {_yardstick(best)}, "
        f"sums in {row.dtype} resolve {epsilon:.3g}"
    )


def _one_row(row: Row, best: float | None) -> str:
    """What is wrong with the worst row."""
    if row.worst_row is None:
        return ""
    honest = row_noise(row.direction, row.dtype, _terms(row))
    limit = max(ROW_RATIO * (best or 0.0), honest)
    if row.worst_row <= limit:
        return ""
    return (
        f"the row {row.worst_row_at} is off by {row.worst_row:.3g} of its norm, over {limit:.3g}: "
        f"{_yardstick(best)} in its worst row, {row.dtype} explains {honest:.3g}"
    )


def _yardstick(best: float | None) -> str:
    return "there is no baseline" if best is None else f"the best valid baseline has {best:.3g}"


def _terms(row: Row) -> int:
    op = ops.get(row.op)
    return op.terms(op.shape_model.model_validate(row.shape))


def _over(row: Row) -> bool:
    # Written so that a NaN could never pass.
    return row.mae is not None and not row.mae <= row.mae_tolerance
