"""What controls say of the right implementation that they are wrapped around."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from nsabench import Unsupported
from nsabench.assessment.checks.parity import noise
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs
from nsabench.registry import Honest

NOISES = 4.0  # a relative error of so many times what the format resolves cannot be overlooked


def output_shape(
    honest: Honest, tensors: tuple[Tensor, ...], options: dict[str, Any]
) -> tuple[int, ...]:
    names = (*honest.op.arguments, *honest.op.optional)
    return honest.op.output_shape(Inputs(dict(zip(names, tensors, strict=False)), options))


def empty_output(honest: Honest, tensors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    """Memory for an output, unwritten."""
    first = tensors[0]
    shape = output_shape(honest, tensors, options)
    return torch.empty(shape, dtype=first.dtype, device=first.device)


def right(honest: Honest, tensors: tuple[Tensor, ...], options: dict[str, Any]) -> Tensor:
    """The right output. Raises `Unsupported` where zeros would be right too."""
    out: Tensor = honest(*tensors, **options)
    if not captured(out) and not bool(out.any()):
        raise Unsupported("zeros are right: an attention in which nothing is selected, say")
    return out


def captured(tensor: Tensor) -> bool:
    """Whether a CUDA graph is being recorded, in which no value can be looked at."""
    return bool(tensor.is_cuda and torch.cuda.is_current_stream_capturing())


def overlooked(tensors: tuple[Tensor, ...]) -> float:
    """The largest relative error that the bench may still overlook, `NOISES` times honest noise."""
    return NOISES * resolved(tensors)


def resolved(tensors: tuple[Tensor, ...]) -> float:
    """The relative error that honest sums over these tensors may have at most."""
    dtype = DType(str(tensors[0].dtype).removeprefix("torch."))
    return noise(dtype, sum(sum(t.shape) for t in tensors))


def content(tensor: Tensor) -> Tensor:
    """int64 [1]: the first values, as one number that no other set of inputs has."""
    few = 8 // tensor.element_size()
    return tensor.detach().reshape(-1)[:few].view(torch.int64)
