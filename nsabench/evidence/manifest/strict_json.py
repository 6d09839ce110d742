"""JSON from a stranger: no NaN, no endless nesting, no endless size, and of the right form."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import from_json

from nsabench.errors import VerificationFailed

# A run of 10,000 cases has a manifest of about 2 MB.
MAX_BYTES = 64 << 20

M = TypeVar("M", bound=BaseModel)


def parse_json(data: bytes, what: str, model: type[M]) -> M:
    """The `model` that JSON without NaN or infinity describes.

    Raises `VerificationFailed` when it does not, is nested too deep, or is too large.
    """
    if len(data) > MAX_BYTES:
        raise VerificationFailed(f"{what} has {len(data)} bytes, more than {MAX_BYTES}")
    try:
        return model.model_validate(from_json(data, allow_inf_nan=False))
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise VerificationFailed(
            f"{what} is not as it should be: {where}: {first['msg']}"
        ) from None
    except ValueError as error:
        raise VerificationFailed(f"{what} is not JSON: {error}") from None
