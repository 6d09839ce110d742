"""What a check found: one sentence with the numbers in it, and what it does to a record."""

from __future__ import annotations

from dataclasses import dataclass

from nsabench.model.vocabulary import Word


class Effect(Word):
    """What a finding changes. The order is the order of gravity."""

    INVALID = "invalid", "nothing may be decided: on the case, or on the run if no case is named"
    WRONG = "wrong", "the record is not ok: its output is not the op's"
    IMPLAUSIBLE = "implausible", "the record is not ok: its time cannot be"
    INCONCLUSIVE = "inconclusive", "the verdict, if there is one, is not to be relied on"
    NOTE = "note", "worth saying, changes nothing"


@dataclass(frozen=True)
class Finding:
    """An empty `case_id` speaks of the whole run, an empty `implementation` of all of a case."""

    check: str
    effect: Effect
    sentence: str
    case_id: str = ""
    implementation: str = ""

    def concerns(self, case_id: str, implementation: str) -> bool:
        """Whether the finding bears on this record."""
        return self.case_id in ("", case_id) and self.implementation in ("", implementation)
