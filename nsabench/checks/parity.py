"""Decide whether a result is right, by its distance from the float64 oracle.

The worker has checked the shape and dtype of the result (`worker/calls.py`), and the checker has
measured its errors (`checker/compare.py`). Three errors are limited:

- the mean absolute error, by the tolerance of the case;
- the relative L2 error, by a multiple of what rounding explains (`resolution`);
- the L2 error of the worst row, by another multiple of `resolution` (`row_ratio`).

The checker rejects a call by the first limit. `check_parity` applies all three to the record. On a
probe (unusual inputs, `ops/_probes.py`) only the relative L2 error is limited: `find_probe_limit`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache

from nsabench import ops
from nsabench.checks.finding import Effect, Finding
from nsabench.checks.roofline import DeviceLimits
from nsabench.delivery import OUTPUT
from nsabench.model.case import Case
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, DType, Status
from nsabench.ops import Op

# Spacing of the format at 1 (2^-mantissa bits). Rounding alone gives errors of about 0.3 of it.
EPSILON = {DType.FLOAT16: 2.0**-10, DType.BFLOAT16: 2.0**-7, DType.FLOAT32: 2.0**-23}
# On tensor cores, three TF32 products replace one in float32, and each sum of 8 terms is truncated.
# At most `TILE` terms are summed there before the sum is added in float32.
TRUNCATIONS_A_TERM, TILE = 3 / 8, 64


def noise(dtype: DType, terms: int, logit: float = 1.0) -> float:
    """Return the relative error that an honest result may have if it sums this many terms.

    The larger of two errors counts: of rounding to the format, and of sums in float32. Such a sum,
    in any order, is off by about sqrt(terms) roundings (Higham and Mary 2019, probabilistic
    rounding error analysis). On tensor cores the truncations in one tile do not cancel (Ootomo and
    Yokota 2022, recovering single precision accuracy from Tensor Cores). A softmax turns the
    absolute error of its logits into a relative error, so the error grows with logits above 1.
    """
    sums = max(math.sqrt(terms), TRUNCATIONS_A_TERM * min(terms, TILE))
    return max(EPSILON[dtype], sums * EPSILON[DType.FLOAT32] * max(logit, 1.0))


def resolution(case: Case | Record) -> float:
    """Return the relative error that an honest result of a case may have."""
    op = _computed_op(case)
    terms = _count_terms(op, tuple(case.shape.items()))
    return noise(case.dtype, terms, op.logit(case.distribution))


@lru_cache(maxsize=4096)
def _count_terms(op: Op, sizes: tuple[tuple[str, int], ...]) -> int:
    known = {size: n for size, n in sizes if size in op.shape_model.model_fields}
    return op.terms(op.shape_model.model_validate(known))


# The allowed error of a row, as a multiple of `noise`. The largest errors of honest rows on an H200
# are 1.9 in output, 8.3 in dq, 1.2 in dk and dv (notes/worst_rows.md). On a CPU they are 3.4, 1.8
# and 1.7 in dq, dk and dv. Only `large_logits` in float32 gave larger errors.
ROW_NOISE = {
    OUTPUT: 2.0,  # the output and the weights are rounded, each by a third of the spacing
    "dv": 4.0,  # a sum like an output, over the queries and perhaps over a group of heads
    # Terms of dk cancel only for queries with few keys, and many other queries see the same key.
    "dk": 8.0,
}
# The terms of dq cancel: they are large for a query with few keys, and the values saved by the
# forward are rounded. The terms of any other gradient may also cancel.
ROW_NOISE_OF_A_GRADIENT = 16.0
# The error of a row is divided by its norm or, if larger, a typical row's times this factor (1 by
# default). In dv nothing cancels, and norms differ by a factor of 100: with a causal mask only one
# query sees the last key. Below 1/64 of a typical row's norm, weights may underflow.
LEAST_ROW = {"dv": 1 / 64}


def result_of(row_at: str) -> str:
    return row_at.partition("[")[0]  # such as `dk[0, 7, 1]`


def row_ratio(result: str) -> float:
    return ROW_NOISE.get(result, ROW_NOISE_OF_A_GRADIENT)


def least_row(result: str) -> float:
    return LEAST_ROW.get(result, 1.0)


def is_seen(result: str, of_typical: float, resolved: float) -> bool:
    """Return whether parity finds a lost row whose norm should be `of_typical` of a typical one."""
    return of_typical > min(max(least_row(result), of_typical) * row_ratio(result), 1.0) * resolved


ORACLE = "the float64 oracle"
PROBE_NOISE = 8.0  # a mistake gives an error of more than this multiple of `noise`


def find_excess_of_mean(mae: float, case: Case | Record, result: str = "") -> str:
    """Return why a mean absolute error is too large, or an empty text."""
    if mae <= case.tolerances.mae:  # False for NaN
        return ""
    what = f" of {result}" if result and case.direction.differentiates else ""
    return (
        f"mean absolute error {mae:.3g}{what} against {ORACLE} is over the "
        f"tolerance of {case.tolerances.mae:.3g}"
    )


def find_probe_limit(case: Case) -> float:
    op = ops.get(case.op)
    return PROBE_NOISE * noise(case.dtype, op.terms(ops.sizes(case)), ops.COMMON_LOGIT)


def find_excess_on_probe(rel_l2: float, case: Case, result: str) -> str:
    """Return why the relative error on a probe is too large, or an empty text."""
    limit = find_probe_limit(case)
    if rel_l2 <= limit:
        return ""
    what = f" of {result}" if case.direction.differentiates else ""
    return f"relative error {rel_l2:.3g}{what} is over {limit:.3g}"


def check_parity(records: Sequence[Record], limits: DeviceLimits) -> list[Finding]:
    """Compare every implementation with the float64 oracle on the same inputs.

    An `ok` record is wrong if it is further from the oracle than its tolerance or than rounding
    explains, as a whole or in one row.
    """
    return [
        Finding("parity", Effect.WRONG, sentence, *record.key)
        for record in records
        if record.status is Status.OK and (sentence := _find_excess(record))
    ]


def _find_excess(record: Record) -> str:
    if record.mae is not None and (excess := find_excess_of_mean(record.mae, record)):
        return excess
    if is_unconditioned(record):
        return ""
    resolved = resolution(record)
    limit = record.tolerances.rel_l2_ratio * resolved
    # Written so that NaN never passes.
    if record.rel_l2 is not None and not record.rel_l2 <= limit:
        return (
            f"relative L2 error {record.rel_l2:.3g} against {ORACLE} is over {limit:.3g}: rounding "
            f"in {record.dtype} explains {resolved:.3g}"
        )
    at = record.worst_row_at
    result = result_of(at) or (OUTPUT if record.direction is Direction.FORWARD else "")
    limit = row_ratio(result) * resolved
    if record.worst_row is not None and not record.worst_row <= limit:
        return (
            f"the relative error of row {at} is {record.worst_row:.3g}: rounding in "
            f"{record.dtype} explains {limit:.3g}"
        )
    return ""


def is_unconditioned(case: Case | Record) -> bool:
    # The gradients of a softmax with large logits are differences of nearly equal numbers, so their
    # relative errors are not limited.
    logit = _computed_op(case).logit(case.distribution)
    return case.direction.differentiates and logit > 1


def _computed_op(case: Case | Record) -> Op:
    return ops.get(getattr(case, "computes", "") or case.op)
