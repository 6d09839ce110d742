"""JSON from a stranger: no NaN, no endless nesting, no endless size, and of the right form."""

from __future__ import annotations

from typing import TypeVar

from pydantic import BaseModel

from nsabench.bounds import OutOfBounds, json, limits
from nsabench.errors import VerificationFailed

M = TypeVar("M", bound=BaseModel)


def parse_json(data: bytes, what: str, model: type[M]) -> M:
    """The `model` that JSON without NaN or infinity describes.

    Raises `VerificationFailed` when it does not, is nested too deep, or is too large.
    """
    try:
        return json.load(data, limits.MANIFEST, model)
    except OutOfBounds as error:
        raise VerificationFailed(f"{what} {error}") from None
