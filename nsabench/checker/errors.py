"""How far a result is from the float64 oracle, and whether that is too far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from nsabench import ops
from nsabench.checks import parity as checks
from nsabench.delivery import OUTPUT
from nsabench.model.case import Case
from nsabench.ops import Legal, rows_left_out

LOST = 1 / 8  # of its norm is left, at most, of a row that is nearly zero and should not be
# Rounding does not happen to be the opposite of so many elements. Of fewer it may be, so that a row
# of them is lost only beyond what rounding may be (dgates has three; on an H200 a query with four
# keys in view, whose terms are large beside a typical row's, kept 0.08 of 0.01 of one).
MANY = 16
PIECE = 1 << 26  # elements compared at a time: half a GiB in float64


@dataclass(frozen=True)
class Errors:
    """Distances of a result from the float64 oracle."""

    mae: float
    max_abs_err: float
    rel_l2: float
    # The error of a row (of the last axis), relative to the row's norm: of the row that is furthest
    # off by what a row of its result may be.
    worst_row: float
    worst_row_at: str  # the row of it, "output[4095, 7]"
    # Rows of the output that were held to the oracle, and those left out since rounding decides
    # what is right there. None: all are compared.
    rows: tuple[int, int] | None = None

    @classmethod
    def worst(cls, errors: Sequence[Errors]) -> Errors:
        """The largest of each kind."""
        worst = max(errors, key=lambda e: e.worst_row / checks.row_ratio(e.result))
        return cls(
            max(e.mae for e in errors),
            max(e.max_abs_err for e in errors),
            max(e.rel_l2 for e in errors),
            worst.worst_row,
            worst.worst_row_at,
            # The fewest that a call was held to.
            min((e.rows for e in errors if e.rows is not None), default=None),
        )

    @property
    def result(self) -> str:
        """What the worst row is one of."""
        return checks.result_of(self.worst_row_at)


def measure(
    name: str,
    output: Tensor,
    oracle: Tensor,
    resolved: float,
    factor: float = 1.0,
    *,
    leaves_out: bool = False,
    legal: Legal | None = None,
) -> Errors:
    """Mean and largest absolute error, ||out - oracle|| / ||oracle||, and the same of the worst
    row, in float64.

    A mean hides one row among thousands, so each row is looked at by itself. Its error is relative
    to its own norm, or to that of a typical row (the root of the mean square) where that is
    larger: a row that cancels to nearly nothing has no relative error worth the name. A row that is
    lost has one: it is nearly zero, and what it should be is no rounding of a typical row. In dv
    nothing cancels, and rows are held to their own norm (`checks.LEAST_ROW`).

    name: what the result is called in `worst_row_at`.
    output, oracle: of one shape; a row is what the last axis holds.
    resolved: the relative error that sums in this format may have (`checks.noise`).
    factor: the output is that of an input `factor` times as large; its errors are divided by it.
    leaves_out: rows of the oracle may say that nobody is held to them (`ops.rows_left_out`).
    legal: bounds of some of these; what counts there is the distance to them.
    """
    width = max(output.shape[-1] if output.dim() else 1, 1)
    result, expected = output.reshape(-1, width), oracle.reshape(-1, width)
    counted = rows_left_out.counts(oracle) if leaves_out and name == OUTPUT else None
    if not len(expected):
        return Errors(0.0, 0.0, 0.0, 0.0, "", counted)
    rows = _Rows.of(result, expected, factor, leaves_out=leaves_out, legal=legal)
    # The host of a GPU waits for it twice, where no row is left out, and launches little: each
    # launch takes some 10 us.
    total, largest, error, size, kept = _numbers(
        rows.total,
        rows.largest,
        torch.linalg.vector_norm(rows.off),
        torch.linalg.vector_norm(rows.right),
        rows.kept,
    )
    typical = size / math.sqrt(max(kept, 1)) or 1.0
    held_to = rows.right.clamp_min(checks.least_row(name) * typical)
    rounding = resolved * (checks.row_ratio(name) if width < MANY else 1.0)
    least = max(rounding * typical, math.sqrt(width) * _underflow(output.dtype))
    scale = abs(factor)
    lost = (rows.found <= rows.right * (LOST * scale)) & (rows.right >= least)
    worst, row = _numbers(*(rows.off / torch.where(lost, rows.right, held_to)).max(0))
    index = np.unravel_index(int(row), output.shape[:-1])
    return Errors(
        # What is held to no row at all is not shown to be right.
        total / (kept * width) / scale if kept else math.nan,
        largest / scale,
        error / scale / (size or 1.0),
        worst / scale,
        f"{name}[{', '.join(map(str, index))}]" if index else name,
        counted,
    )


@dataclass(frozen=True)
class _Rows:
    """The norms of each row of what was found, of what is right, and of the difference; over all
    rows the sum and the largest of what they differ by, and how many of them are held to the
    oracle. float64, where the results are."""

    found: Tensor
    right: Tensor
    off: Tensor
    total: Tensor
    largest: Tensor
    kept: Tensor | int

    @classmethod
    def of(
        cls,
        result: Tensor,
        expected: Tensor,
        factor: float,
        *,
        leaves_out: bool,
        legal: Legal | None,
    ) -> _Rows:
        """result, expected: [rows, width], one row at least."""
        found, right, off, totals, largest, kept = [], [], [], [], [], []
        # In pieces, or the largest results would need several times their own memory.
        at_once = max(PIECE // result.shape[1], 1)
        nearest = legal.nearest(result) if legal is not None else None
        bounded = legal.rows.to(result.device) if legal is not None else None
        begin = 0
        for part, truth in zip(result.split(at_once), expected.split(at_once), strict=True):
            truth = truth.double()
            if leaves_out:
                out = ~rows_left_out.compared(truth).unsqueeze(1)
                if nearest is not None and bounded is not None:
                    here = (bounded >= begin) & (bounded < begin + len(part))
                    local = bounded[here] - begin
                    truth = truth.index_copy(0, local, nearest[here])
                    out[local] = False
                kept.append((~out).sum())
                # What nobody is held to must be a number all the same, or it was never written.
                number = part.isfinite().all(1, keepdim=True)
                part, truth = part.masked_fill(out & number, 0.0), truth.masked_fill(out, 0.0)
            begin += len(part)
            difference = torch.sub(part, truth, alpha=factor)  # in the wider format
            found.append(torch.linalg.vector_norm(part, dim=1, dtype=torch.float64))
            right.append(torch.linalg.vector_norm(truth, dim=1))
            off.append(torch.linalg.vector_norm(difference, dim=1))
            totals.append(difference.abs_().sum())
            largest.append(difference.max())
        return cls(
            _joined(found),
            _joined(right),
            _joined(off),
            _added(totals),
            torch.stack(largest).max() if len(largest) > 1 else largest[0],
            _added(kept) if leaves_out else len(expected),
        )


def _joined(pieces: list[Tensor]) -> Tensor:
    return torch.cat(pieces) if len(pieces) > 1 else pieces[0]


def _added(pieces: list[Tensor]) -> Tensor:
    return torch.stack(pieces).sum() if len(pieces) > 1 else pieces[0]


def _numbers(*scalars: Tensor | int) -> list[float]:
    """As Python's; the host waits once for those that are tensors."""
    tensors = [scalar.double() for scalar in scalars if isinstance(scalar, Tensor)]
    values = iter(torch.stack(tensors).tolist())
    return [next(values) if isinstance(scalar, Tensor) else scalar for scalar in scalars]


def _underflow(dtype: torch.dtype) -> float:
    """A value up to which an honest result may be zero: a few of the least steps of its format."""
    format_ = torch.finfo(dtype)
    return 8 * float(format_.smallest_normal) * float(format_.eps)


def unit(oracle: Tensor, case: Case) -> float:
    """What the mean absolute error of a gradient is counted in: 1, or more for large gradients.

    An output is a mean of values of about 1, and its error is held to the tolerance as it is. A
    gradient is a sum over keys or queries and can be of any size, so where it is large its error
    is held to what the format resolves of it.
    """
    kept = oracle.numel()
    if ops.get(case.op).leaves_rows_out:
        kept = rows_left_out.counts(oracle)[0] * oracle.shape[-1]
        oracle = rows_left_out.without(oracle)
    size = float(oracle.norm()) / math.sqrt(max(kept, 1))
    return max(1.0, size * checks.EPSILON[case.dtype] / case.tolerances.mae)


def is_explained(errors: Errors, case: Case) -> bool:
    """Whether the format explains the worst row, so that nobody need ask what it comes from."""
    return errors.worst_row <= checks.row_noise(errors.result, case.dtype, ops.terms(case))


def check_values(
    name: str,
    output: Tensor,
    oracle: Tensor,
    case: Case,
    factor: float = 1.0,
    legal: Legal | None = None,
) -> Errors:
    """The errors of a result. Raises `WrongValues` when they exceed the case's tolerance."""
    resolved = checks.noise(case.dtype, ops.terms(case))
    leaves_out = ops.get(case.op).leaves_rows_out
    errors = measure(name, output, oracle, resolved, factor, leaves_out=leaves_out, legal=legal)
    # NaN or infinity in the output makes the mean so, too; they are counted only then.
    if not math.isfinite(errors.mae) and (bad := int((~torch.isfinite(output)).sum())):
        raise WrongValues(f"{bad} of {output.numel()} {name} elements are NaN or infinite", None)
    what = f" of {name}" if case.direction.differentiates else ""
    if name != OUTPUT:
        errors = replace(errors, mae=errors.mae / unit(oracle, case))
    # Written so that a NaN could never pass.
    if not errors.mae <= case.tolerances.mae:
        raise WrongValues(
            f"mean absolute error {errors.mae:.3g}{what} against the float64 oracle is over "
            f"{case.tolerances.mae:.3g}",
            errors,
        )
    return errors


class WrongValues(Exception):
    """Values beyond tolerance; `errors` is None when they cannot be measured."""

    def __init__(self, reason: str, errors: Errors | None) -> None:
        super().__init__(reason)
        self.errors = errors
