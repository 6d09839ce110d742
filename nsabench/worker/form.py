"""Was a result made the way an honest result is made?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from nsabench.failure import Failure
from nsabench.model.vocabulary import Status


def check_form(name: str, output: Any, shape: Sequence[int], given: dict[str, Tensor]) -> Tensor:
    """The result as a plain tensor. Raises `Failure` (wrong) when its form is not the op's.

    name: what the result is called in the reason. shape: that of an honest result. given: the
      arguments of the call.
    """
    if output is None:
        raise Failure(Status.WRONG, f"it gives no {name}")
    if type(output) is not torch.Tensor:
        raise Failure(
            Status.WRONG,
            f"it returned as {name} a {type(output).__name__}, not a plain torch.Tensor",
        )
    first = next(iter(given.values()))
    for what, actual, expected in (
        ("shape", tuple(output.shape), tuple(shape)),
        ("dtype", output.dtype, first.dtype),
        ("device", output.device.type, first.device.type),
        ("layout", output.layout, first.layout),  # a sparse one has no storage to look at
    ):
        if actual != expected:
            raise Failure(Status.WRONG, f"its {name} has {what} {actual}; the op's is {expected}")
    if output.is_neg():  # in memory, which is what a kernel after it reads, stands the opposite
        raise Failure(Status.WRONG, f"its {name} is a view with the negative bit set")
    storage = output.untyped_storage().data_ptr()
    for argument, tensor in given.items():
        if storage == tensor.untyped_storage().data_ptr():
            raise Failure(Status.WRONG, f"its {name} shares memory with its input {argument}")
    return output
