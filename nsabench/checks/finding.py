"""What a check found: one sentence with the numbers in it, and what it does to a record."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, Mode, Regime, Word


class Effect(Word):
    """What a finding changes. The order is the order of gravity."""

    INVALID = "invalid", "nothing may be decided: on the case, or on the run if no case is named"
    WRONG = "wrong", "the record is not ok: its output is not the op's"
    IMPLAUSIBLE = "implausible", "the record is not ok: its time cannot be"
    INCONCLUSIVE = "inconclusive", "the verdict, if there is one, is not to be relied on"
    UNPROVEN = "unproven", "the verdict stands, but a check behind it was not shown to work there"
    NOTE = "note", "worth saying, changes nothing"


# What says something about a run and objects to nothing in it.
HARMLESS = frozenset({Effect.UNPROVEN, Effect.NOTE})


class Group(NamedTuple):
    """The cases of an op that the same code of the bench measures: a direction, a mode, and one
    call at a time or several."""

    op: str
    direction: Direction
    mode: Mode
    at_once: bool = False  # calls on several streams; how many makes no difference

    @classmethod
    def of(cls, record: Record) -> Group:
        return cls(record.op, record.direction, record.mode, record.streams > 1)

    def __str__(self) -> str:
        return f"{self.op}{self.way}"

    @property
    def way(self) -> str:
        """How it is measured, if not as usual: ` backward`, ` in graph mode`."""
        backward = "" if self.direction is Direction.FORWARD else f" {self.direction}"
        graph = " in graph mode" if self.mode is Mode.GRAPH else ""
        return backward + graph + (" on several streams" if self.at_once else "")


def named(groups: Iterable[Group]) -> str:
    """`decode_dense, decode_step in graph mode`: of groups that are measured in one way."""
    groups = list(groups)
    return ", ".join(group.op for group in groups) + groups[0].way


@dataclass(frozen=True)
class Finding:
    """An empty `case_id` speaks of the whole run, or of all cases of `groups` if there are some;
    an empty `implementation` of all of a case."""

    check: str
    effect: Effect
    sentence: str
    case_id: str = ""
    implementation: str = ""
    groups: tuple[Group, ...] = ()
    regime: Regime | None = None  # the only one in which it speaks; None: it speaks in all

    def concerns(self, record: Record) -> bool:
        """Whether the finding bears on this record."""
        return (
            self.case_id in ("", record.case_id)
            and self.implementation in ("", record.implementation)
            and (not self.groups or Group.of(record) in self.groups)
        )

    def names(self, record: Record) -> bool:
        """Whether it is about this record and no other."""
        return (self.case_id, self.implementation) == record.key

    def speaks_in(self, regime: Regime) -> bool:
        """Whether it has a say in the verdicts of this regime."""
        return self.regime in (None, regime)

    @property
    def of_run(self) -> bool:
        """Whether it speaks of the whole run, in one regime or in all."""
        return not self.case_id and not self.groups
