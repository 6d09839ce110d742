"""Controls whose output is plainly wrong, wrong in one element, or nearly right."""

from __future__ import annotations

import torch
from torch import Tensor

from nsabench import implementation
from nsabench.checks.parity import noise
from nsabench.implementations.sdpa import Attention, heads_as_queries
from nsabench.words import DType

CLOSE = 5e-3  # five times the tolerance of the mean absolute error
NOISES = 4.0  # a relative error that the format resolves and an absolute tolerance may let through


def _empty_like_output(q: Tensor, v: Tensor) -> Tensor:
    return torch.empty(*q.shape[:2], v.shape[2], dtype=q.dtype, device=q.device)


def zero_output(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Never writes its zeroed buffer."""
    return _empty_like_output(q, v).zero_()


def nan_output(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """All NaN, which a comparison of the form `not error > tolerance` lets through."""
    return _empty_like_output(q, v).fill_(float("nan"))


def one_nan(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Right but for one NaN, which a nan-skipping mean lets through."""
    out = heads_as_queries(q, k, v, sm_scale)
    out[-1, -1, -1] = float("nan")
    return out


def wrong_but_close(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Off by 5e-3 everywhere: within the 1e-2 that parity tests often allow."""
    return heads_as_queries(q, k, v, sm_scale) + CLOSE


def relative_error(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Too large by four times what honest sums differ by: small outputs hide it from an absolute
    tolerance."""
    error = NOISES * noise(DType(str(q.dtype).removeprefix("torch.")), k.shape[1] + k.shape[2])
    return (heads_as_queries(q, k, v, sm_scale).float() * (1 + error)).to(q.dtype)


def _register(attention: Attention) -> None:
    @implementation(
        op="selection_rows",
        name=attention.__name__,
        role="control",
        devices=("cuda", "cpu"),
        caught_by="parity",
    )
    def call(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        return attention(q, k, v, sm_scale)


for _attention in (zero_output, nan_output, one_nan, wrong_but_close, relative_error):
    _register(_attention)
