"""Controls whose output is plainly wrong, wrong in one element, or nearly right."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from nsabench import Unsupported
from nsabench.implementations.controls.honest import captured, empty_output, overlooked, right
from nsabench.registry import Honest, control

CLOSE = 5e-3  # five times the tolerance of the mean absolute error


@control(caught_by="parity")
def zero_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Never writes its zeroed buffer."""
    return right(honest, tensors, options).zero_()


@control(caught_by="parity")
def nan_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """All NaN, which a comparison of the form `not error > tolerance` lets through."""
    return empty_output(honest, tensors, options).fill_(float("nan"))


@control(caught_by="parity")
def one_nan(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Right but for one NaN, which a nan-skipping mean lets through."""
    out: Tensor = honest(*tensors, **options)
    out[(-1,) * out.dim()] = float("nan")
    return out


@control(caught_by="parity")
def wrong_but_close(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Off by 5e-3 everywhere: within the 1e-2 that parity tests often allow."""
    out: Tensor = honest(*tensors, **options) + CLOSE
    return out


@control(caught_by="parity")
def relative_error(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Too large by four times what honest sums differ by: small outputs hide it from an absolute
    tolerance."""
    out = right(honest, tensors, options)
    return (out.float() * (1 + overlooked(tensors))).to(out.dtype)


@control(caught_by="parity")
def lost_tail_row(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Right but for the last row of the last head, which a tile at the tail left zero: among
    thousands of rows no mean shows it."""
    out = right(honest, tensors, options)
    row = (-1,) * (out.dim() - 1)
    if not captured(out) and not bool(out[row].any()):
        raise Unsupported("its last row is zero anyway")
    out[row] = 0
    return out
