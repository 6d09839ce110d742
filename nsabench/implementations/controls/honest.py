"""What the controls of each op are wrapped around, and how one is declared for all of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported, implementation
from nsabench.assessment.checks.parity import noise
from nsabench.implementations.baselines import compressed as compressed_baselines
from nsabench.implementations.baselines import decode_branches, decode_step
from nsabench.implementations.baselines import selection_blocks as blocks_baselines
from nsabench.implementations.baselines import selection_ranges as ranges_baselines
from nsabench.implementations.baselines import selection_varlen as varlen_baselines
from nsabench.implementations.baselines import sliding_window as sliding_baselines
from nsabench.implementations.baselines.selection_rows import heads_as_queries
from nsabench.model.vocabulary import DType

Attention = Callable[..., Tensor]
# Given a right implementation of an op and then its arguments.
Trick = Callable[..., Tensor]

NOISES = 4.0  # a relative error of so many times what the format resolves cannot be overlooked


def _rows(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return heads_as_queries(q, k, v, sm_scale)


def _whole(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    return decode_branches.heads_as_queries(q, k, v, sm_scale)


def _window(q: Tensor, k: Tensor, v: Tensor, *, window: int, sm_scale: float) -> Tensor:
    return decode_branches.heads_as_queries(q, *decode_branches.newest(k, v, window), sm_scale)


# By op: a right implementation that runs on every device, and the name of the baseline that it is.
HONEST: dict[str, tuple[Attention, str]] = {
    "selection_rows": (_rows, "sdpa_heads_as_queries"),
    "selection_varlen": (varlen_baselines.masked_sdpa, "masked_sdpa"),
    "selection_ranges": (ranges_baselines.masked_sdpa, "masked_sdpa"),
    "selection_blocks": (blocks_baselines.masked_sdpa, "masked_sdpa"),
    "sliding_window": (sliding_baselines.masked_sdpa, "masked_sdpa"),
    "compressed": (compressed_baselines.masked_sdpa, "masked_sdpa"),
    "decode_step": (decode_step.torch_step, "torch_step"),
    "decode_compressed": (_whole, "sdpa_heads_as_queries"),
    "decode_selected": (decode_branches.gathered_sdpa, "gathered_sdpa"),
    "decode_window": (_window, "sdpa_heads_as_queries"),
    "decode_dense": (_whole, "sdpa_heads_as_queries"),
}


def of_every_op(
    *, caught_by: str, cuda_only: bool = False, wraps: bool = False
) -> Callable[[Trick], Trick]:
    """Register a trick, under its own name, as a forward control of every op.

    wraps: whether its check holds it to the baseline that it would be without the trick.
    """

    def register(trick: Trick) -> Trick:
        for op, (honest, baseline) in HONEST.items():
            implementation(
                op=op,
                name=trick.__name__,
                role="control",
                devices=("cuda",) if cuda_only else ("cuda", "cpu"),
                caught_by=caught_by,
                wraps=baseline if wraps else "",
                directions=("forward",),
            )(partial(trick, honest))
        return trick

    return register


def empty_output(tensors: tuple[Tensor, ...]) -> Tensor:
    """Memory for an output, unwritten. In every op q comes first and v third."""
    q, _, v = tensors[:3]
    return torch.empty(*q.shape[:-1], v.shape[-1], dtype=q.dtype, device=q.device)


def right(honest: Attention, tensors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    """The right output. Raises `Unsupported` where zeros would be right too."""
    out = honest(*tensors, **options)
    captured = out.is_cuda and torch.cuda.is_current_stream_capturing()
    if not captured and not bool(out.any()):
        raise Unsupported("nothing is selected, so zeros are right")
    return out


def overlooked(tensors: tuple[Tensor, ...]) -> float:
    """The largest relative error that the bench may still overlook, `NOISES` times honest noise."""
    dtype = DType(str(tensors[0].dtype).removeprefix("torch."))
    return NOISES * noise(dtype, sum(sum(t.shape) for t in tensors))
