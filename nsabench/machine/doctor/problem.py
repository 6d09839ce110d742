"""A problem that the doctor reports, with its severity and its remedy."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from functools import partial


class Severity(StrEnum):
    """How grave a problem is, from the worst to the mildest."""

    ERROR = "error"  # the run is impossible, or its figures would mean nothing
    WARNING = "warning"  # figures may be off
    NOTE = "note"  # good to know when figures are compared


@dataclass(frozen=True)
class MachineProblem:
    """`what` and `remedy` are one sentence each; `code` is stable, for programs."""

    severity: Severity
    code: str
    what: str
    remedy: str


error = partial(MachineProblem, Severity.ERROR)
warning = partial(MachineProblem, Severity.WARNING)
note = partial(MachineProblem, Severity.NOTE)
