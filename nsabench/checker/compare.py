"""Measure the errors of a result against the float64 oracle. `checks/parity.py` limits them."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nsabench import ops
from nsabench.checks import parity as checks
from nsabench.delivery import OUTPUT
from nsabench.model.case import Case

LOST = 1 / 8  # a row is lost if its norm is at most this share of its norm in the oracle
# The norm in the oracle must also reach the rounding error of a typical row. In rows of fewer than
# MANY elements (dgates has three) it must reach `row_ratio` times as much.
MANY = 16
PIECE = 1 << 26  # elements compared at a time: half a GiB in float64


@dataclass(frozen=True)
class Errors:
    """Distances of a result from the float64 oracle.

    worst_row: the largest relative error of a row (of the last axis). `worst` keeps the one with
    the largest ratio to its limit. worst_row_at: the index of that row, "output[4095, 7]".
    rows_compared: how many rows of the output are compared; None if they are not sampled.
    """

    mae: float
    max_abs_err: float
    rel_l2: float
    worst_row: float
    worst_row_at: str
    rows_compared: int | None = None

    @classmethod
    def worst(cls, errors: Sequence[Errors]) -> Errors:
        worst = max(errors, key=lambda e: e.worst_row / checks.row_ratio(e.result))
        counted = [e.rows_compared for e in errors if e.rows_compared is not None]
        return cls(
            max(e.mae for e in errors),
            max(e.max_abs_err for e in errors),
            max(e.rel_l2 for e in errors),
            worst.worst_row,
            worst.worst_row_at,
            min(counted, default=None),
        )

    @property
    def result(self) -> str:
        return checks.result_of(self.worst_row_at)


def measure(
    name: str,
    output: Tensor,
    oracle: Tensor,
    resolved: float,
    factor: float = 1.0,
    sampled: bool = False,
) -> Errors:
    """Measure the errors of a result [..., w] as a whole, and of its worst row [w], in float64.

    The error of a row is relative to its norm in the oracle or, unless the row is lost, to
    `least_row` times a typical row's norm if that is larger.

    factor: the result should be the oracle times this factor, so errors are divided by abs(factor).
    sampled: compare only the rows that the oracle has computed.
    """
    width = max(output.shape[-1] if output.dim() else 1, 1)
    result, expected = output.reshape(-1, width), oracle.reshape(-1, width)
    if not len(expected):
        return Errors(0.0, 0.0, 0.0, 0.0, "")
    rows = None
    # Rows that are not compared must also be finite: NaN may mean that a row was not written.
    is_written = True
    if sampled:
        is_written = bool(torch.stack(result.aminmax()).isfinite().all())
        rows = ops.compared(expected).nonzero().flatten()
        result, expected = result[rows], expected[rows]
    pieces = list(_measure_pieces(result, expected, factor))
    norms, right, off = torch.cat([of_rows for of_rows, _ in pieces], 1)
    sums, largest = torch.stack([of_piece for _, of_piece in pieces], 1)
    of_all = sums.sum(), largest.max(), *map(torch.linalg.vector_norm, (off, right))
    # If rows are not sampled, the host waits for the device only here and for the worst row.
    total, max_abs_err, l2, size = torch.stack(of_all).tolist()
    typical = size / math.sqrt(len(expected)) or 1.0
    held_to = right.clamp_min(checks.least_row(name) * typical)
    rounding = resolved * (checks.row_ratio(name) if width < MANY else 1.0)
    least = max(rounding * typical, math.sqrt(width) * _underflow(output.dtype))
    scale = abs(factor)
    lost = (norms <= right * (LOST * scale)) & (right >= least)
    worst, row = torch.stack(
        [found.double() for found in (off / torch.where(lost, right, held_to)).max(0)]
    ).tolist()
    number = int(row) if rows is None else int(rows[int(row)])
    index = np.unravel_index(number, output.shape[:-1])
    return Errors(
        total / (len(expected) * width) / scale if is_written else math.nan,
        max_abs_err / scale,
        l2 / scale / (size or 1.0),
        worst / scale,
        f"{name}[{', '.join(map(str, index))}]" if index else name,
        len(rows) if rows is not None and name == OUTPUT else None,
    )


def describe_worst(name: str, output: Tensor, expected: Tensor) -> str:
    """Return a sentence with the element that is farthest off, its value and the expected one."""
    if not output.numel():
        return ""
    off = (output.double() - expected.double()).abs().nan_to_num(nan=math.inf)
    # An oracle holds NaN in rows that are not compared.
    number = int(torch.where(expected.isfinite(), off, -1.0).argmax())
    index = ", ".join(map(str, np.unravel_index(number, output.shape)))
    found, right = output.flatten()[number].item(), expected.flatten()[number].item()
    return f"{name}[{index}] is {found:.5g} and should be {right:.5g}"


def _measure_pieces(
    result: Tensor, expected: Tensor, factor: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield float64 measures of a few rows [rows, width] at a time, to bound the memory.

    The first measure [3, rows] holds the norms of each row of the result, the oracle and the
    difference. The second measure [2] holds the sum and the largest of the absolute differences.
    """
    at_once = max(PIECE // result.shape[1], 1)
    for part, truth in zip(result.split(at_once), expected.split(at_once), strict=True):
        truth = truth.double()
        difference = torch.sub(part, truth, alpha=factor)  # in float64, as truth is
        norms = [
            torch.linalg.vector_norm(rows, dim=1, dtype=torch.float64)
            for rows in (part, truth, difference)
        ]
        total = difference.abs_().sum()
        yield torch.stack(norms), torch.stack([total, difference.max()])


def _underflow(dtype: torch.dtype) -> float:
    format_ = torch.finfo(dtype)
    return 8 * float(format_.smallest_normal) * float(format_.eps)


def unit(oracle: Tensor, case: Case) -> float:
    """Return the unit in which the mean absolute error of a gradient is measured."""
    if ops.get(case.op).samples_queries:
        oracle = oracle[ops.compared(oracle)]
    size = float(oracle.norm()) / math.sqrt(max(oracle.numel(), 1))
    return max(1.0, size * checks.EPSILON[case.dtype] / case.tolerances.mae)


def is_rounding(errors: Errors, case: Case) -> bool:
    return errors.worst_row <= checks.row_ratio(errors.result) * checks.resolution(case)


def check_values(
    name: str, output: Tensor, oracle: Tensor, case: Case, factor: float = 1.0, probe: bool = False
) -> Errors:
    """Return the errors of a result. Raise `WrongValues` if their mean is too large or not finite.

    probe: limit the relative L2 error instead of the mean, since the inputs may be large.
    """
    resolved = checks.resolution(case)
    sampled = ops.get(case.op).samples_queries
    errors = measure(name, output, oracle, resolved, factor, sampled)
    # A NaN or infinite element makes the mean NaN or infinite; only then are elements counted.
    if not math.isfinite(errors.mae) and (bad := int((~torch.isfinite(output)).sum())):
        raise WrongValues(f"{bad} of {output.numel()} {name} elements are NaN or infinite", None)
    if probe:
        reason = checks.find_excess_on_probe(errors.rel_l2, case, name)
    else:
        if name != OUTPUT:
            errors = replace(errors, mae=errors.mae / unit(oracle, case))
        reason = checks.find_excess_of_mean(errors.mae, case, name)
    if reason:
        raise WrongValues(reason, errors)
    return errors


class WrongValues(Exception):
    """An error is too large, or elements are NaN or infinite (then `errors` is None)."""

    def __init__(self, reason: str, errors: Errors | None) -> None:
        super().__init__(reason)
        self.errors = errors
