"""A finding of a check is a sentence with numbers, and has an effect on records."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, Mode, Regime, Word


class Effect(Word):
    """The effect of a finding on records, the gravest first."""

    INVALID = "invalid", "nothing may be decided on the case, group or run that the finding names"
    WRONG = "wrong", "the record is not ok: its output is wrong"
    IMPLAUSIBLE = "implausible", "the record is not ok: its time is impossible"
    INCONCLUSIVE = "inconclusive", "the verdict becomes inconclusive"
    UNPROVEN = "unproven", "the verdict stands, but no control proved a check that it rests on"
    NOTE = "note", "worth knowing; changes no verdict"


# These effects change no verdict.
HARMLESS = frozenset({Effect.UNPROVEN, Effect.NOTE})


class Group(NamedTuple):
    """The cases of an op in one direction and mode, which share the code that measures them."""

    op: str
    direction: Direction
    mode: Mode

    @classmethod
    def from_record(cls, record: Record) -> Group:
        return cls(record.op, record.direction, record.mode)

    def __str__(self) -> str:
        return f"{self.op}{self.way}"

    @property
    def way(self) -> str:
        """The direction if not forward, and the graph mode, as in ` backward in graph mode`."""
        backward = "" if self.direction is Direction.FORWARD else f" {self.direction}"
        graph = " in graph mode" if self.mode is Mode.GRAPH else ""
        return backward + graph


@dataclass(frozen=True)
class Finding:
    """A finding about a record, a case or a run.

    An empty `implementation`, `case_id` or `groups` stands for all implementations, cases or
    groups. A finding with neither `case_id` nor `groups` is about the whole run.
    """

    check: str
    effect: Effect
    sentence: str
    case_id: str = ""
    implementation: str = ""
    groups: tuple[Group, ...] = ()
    regime: Regime | None = None  # the only regime that the finding is about; None: all

    def concerns(self, record: Record) -> bool:
        return (
            self.case_id in ("", record.case_id)
            and self.implementation in ("", record.implementation)
            and (not self.groups or Group.from_record(record) in self.groups)
        )

    def names(self, record: Record) -> bool:
        return (self.case_id, self.implementation) == record.key

    @property
    def is_about_run(self) -> bool:
        return not self.case_id and not self.groups


def by_gravity(findings: Iterable[Finding]) -> list[Finding]:
    gravity = list(Effect)
    return sorted(findings, key=lambda finding: gravity.index(finding.effect))
