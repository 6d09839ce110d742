"""JSON within bounds: its size; pydantic's parser bounds its depth."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nsabench.bounds.content import OutOfBounds, whole
from nsabench.bounds.faults import first_fault

M = TypeVar("M", bound=BaseModel)


def load(data: bytes, most: int, model: type[M]) -> M:
    """The `model` that JSON without NaN or infinity describes.

    Raises `OutOfBounds` when it does not, is nested too deeply, or has more than `most` bytes.
    """
    try:
        return model.model_validate(from_json(whole(data, most), allow_inf_nan=False))
    except ValidationError as error:
        raise OutOfBounds(f"is not as it should be: {first_fault(error)}") from None
    except OutOfBounds:
        raise
    except ValueError as error:
        raise OutOfBounds(f"is not JSON: {error}") from None
