"""What a doctor says: a problem, how bad it is, and what to do about it."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict


class Severity(StrEnum):
    """From worst to mildest, in this order."""

    ERROR = "error"  # what was asked for cannot be done, or its numbers would mean nothing
    WARNING = "warning"  # numbers may be off
    NOTE = "note"  # good to know when numbers are compared


class Problem(BaseModel):
    """`what` and `remedy` are one sentence each; `code` is stable, for programs."""

    model_config = ConfigDict(frozen=True)

    severity: Severity
    code: str
    what: str
    remedy: str


def error(code: str, what: str, remedy: str) -> Problem:
    return Problem(severity=Severity.ERROR, code=code, what=what, remedy=remedy)


def warning(code: str, what: str, remedy: str) -> Problem:
    return Problem(severity=Severity.WARNING, code=code, what=what, remedy=remedy)


def note(code: str, what: str, remedy: str) -> Problem:
    return Problem(severity=Severity.NOTE, code=code, what=what, remedy=remedy)
