"""Is an output what the oracle says, and was it made the way an honest output is made?"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nsabench.case import Case
from nsabench.failure import Failure
from nsabench.ops.contract import Inputs
from nsabench.words import Status


@dataclass(frozen=True)
class Errors:
    """Distances of an output from the float64 oracle."""

    mae: float
    max_abs_err: float
    rel_l2: float


def measure(output: Tensor, oracle: Tensor) -> Errors:
    """Mean and largest absolute error, and ||out - oracle|| / ||oracle||, in float64."""
    difference = output.double() - oracle
    norm = float(oracle.norm())
    relative = float(difference.norm()) / norm if norm else float(difference.norm())
    return Errors(float(difference.abs().mean()), float(difference.abs().max()), relative)


def check_form(output: Any, oracle: Tensor, inputs: Inputs) -> Tensor:
    """The output as a plain tensor. Raises `Failure` (wrong) when its form is not the op's."""
    if type(output) is not torch.Tensor:
        raise Failure(
            Status.WRONG, f"it returned a {type(output).__name__}, not a plain torch.Tensor"
        )
    first = next(iter(inputs.tensors.values()))
    for what, got, expected in (
        ("shape", tuple(output.shape), tuple(oracle.shape)),
        ("dtype", output.dtype, first.dtype),
        ("device", output.device.type, first.device.type),
    ):
        if got != expected:
            raise Failure(Status.WRONG, f"its output has {what} {got}; the op's is {expected}")
    storage = output.untyped_storage().data_ptr()
    for name, tensor in inputs.tensors.items():
        if storage == tensor.untyped_storage().data_ptr():
            raise Failure(Status.WRONG, f"its output shares memory with its input {name}")
    return output


def check_values(output: Tensor, oracle: Tensor, case: Case) -> Errors:
    """The errors of an output. Raises `WrongValues` when they exceed the case's tolerance."""
    bad = int((~torch.isfinite(output)).sum())
    if bad:
        raise WrongValues(f"{bad} of {output.numel()} output elements are NaN or infinite", None)
    errors = measure(output, oracle)
    # Written so that a NaN could never pass.
    if not errors.mae <= case.tolerances.mae:
        raise WrongValues(
            f"mean absolute error {errors.mae:.3g} against the float64 oracle is over "
            f"{case.tolerances.mae:.3g}",
            errors,
        )
    return errors


class WrongValues(Failure):
    """Values beyond tolerance; `errors` is None when they cannot be measured."""

    def __init__(self, reason: str, errors: Errors | None) -> None:
        super().__init__(Status.WRONG, reason)
        self.errors = errors
