"""Controls whose output is wrong, not computed or written too late, or that change an input."""

from __future__ import annotations

import threading
import time
from collections import Counter
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations.controls._shared import (
    decline_in_a_graph,
    empty_output,
    is_captured,
    overlooked_error,
    right_output,
    side_stream,
)
from nsabench.registry import Honest, control

FIRST_KEYS = 64
MAX_REMEMBERED = 8  # the most outputs that a control keeps; more could fill the device
HONEST_CALLS = 4
# About 1 ms, so that even on a busy host the output is written after its check.
LATE_CYCLES = 2_000_000
LATE_S = 0.02

_by_address: dict[tuple[object, ...], Tensor] = {}
_calls: Counter[tuple[object, ...]] = Counter()


@control(caught_by="parity")
def zero_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    return right_output(honest, tensors, options).zero_()


@control(caught_by="parity")
def one_nan(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Is right except for one NaN. A mean that skips NaN misses it."""
    out = honest(*tensors, **options)
    out[(-1,) * out.dim()] = float("nan")
    return out


@control(caught_by="parity")
def relative_error(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Is off by four times the rounding error, which an absolute tolerance may allow."""
    out = right_output(honest, tensors, options)
    return (out.float() * (1 + overlooked_error(tensors))).to(out.dtype)


@control(caught_by="parity")
def lost_tail_row(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Is right except for its last row, which is zero. A mean over rows misses the error."""
    out = right_output(honest, tensors, options)
    row = (-1,) * (out.dim() - 1)
    if not is_captured(out) and not bool(out[row].any()):
        raise Unsupported("the last row of the right output is zero")
    out[row] = 0
    return out


@control("selection_rows", caught_by="parity")
def sdpa_causal_one_query(
    honest: Honest, q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float
) -> Tensor:
    """Aligns a causal mask at the top left. A single query then sees only key 0."""
    if k.shape[1] == 1:
        raise Unsupported("with one key, key 0 is all keys")
    keys, values = (x.unsqueeze(1).expand(-1, q.shape[1], -1, -1) for x in (k, v))
    out = scaled_dot_product_attention(q.unsqueeze(2), keys, values, is_causal=True, scale=sm_scale)
    return out.squeeze(2)


@control("selection_rows", caught_by="parity")
def first_64_keys(honest: Honest, q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    if k.shape[1] <= FIRST_KEYS:
        raise Unsupported(f"the first {FIRST_KEYS} keys are all {k.shape[1]} of them")
    return honest(q, k[:, :FIRST_KEYS], v[:, :FIRST_KEYS], **options)


@control(caught_by="parity")
def cached_output(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Returns the output of an earlier call if addresses are equal, even if values have changed."""
    key = (honest, *((t.data_ptr(), t.shape, t.dtype) for t in tensors))
    if key not in _by_address:
        if len(_by_address) >= MAX_REMEMBERED:
            _by_address.clear()
        _by_address[key] = right_output(honest, tensors, options)
    return _by_address[key]


@control(caught_by="parity")
def batch_and_skip(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Computes in its first calls only, which are usually the ones that are checked."""
    key = (honest, *((t.shape, t.dtype, t.device) for t in tensors), *options.items())
    _calls[key] += 1
    if _calls[key] <= HONEST_CALLS:
        return honest(*tensors, **options)
    return empty_output(honest, tensors, options)


@control(caught_by="parity")
def mutated_input(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    out = honest(*tensors, **options)
    tensors[0].mul_(0.5)
    return out


@control(caught_by="parity", devices=("cuda",), needs_order=True)
def side_stream_unjoined(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Computes on a side stream, and the caller's stream does not wait for it."""
    decline_in_a_graph(tensors[0])
    side = side_stream(tensors[0].device)
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(LATE_CYCLES)
        return honest(*tensors, **options)


@control(caught_by="parity", devices=("cuda",), needs_order=True)
def default_stream(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    decline_in_a_graph(tensors[0])
    with torch.cuda.stream(torch.cuda.default_stream(tensors[0].device)):
        return honest(*tensors, **options)


@control(caught_by="parity")
def worker_thread_escape(honest: Honest, *tensors: Tensor, **options: Any) -> Tensor:
    """Hands the work to a thread and returns memory that is not written yet."""
    decline_in_a_graph(tensors[0])
    out = empty_output(honest, tensors, options)

    def work() -> None:
        time.sleep(LATE_S)
        out.copy_(honest(*tensors, **options))

    threading.Thread(target=work, daemon=True).start()
    return out
