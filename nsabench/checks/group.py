"""Cases that are measured in one way, and so by the same code of the bench."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from nsabench.model.vocabulary import Direction, Mode


class Grouped(Protocol):
    """What belongs to a case, and knows how that is measured."""

    @property
    def op(self) -> str: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def streams(self) -> int: ...


class Group(NamedTuple):
    """The cases of an op in one direction and mode, of one call at a time or of several."""

    op: str
    direction: Direction
    mode: Mode
    at_once: bool = False  # calls on several streams; how many makes no difference to the bench

    @classmethod
    def of(cls, record: Grouped) -> Group:
        return cls(record.op, record.direction, record.mode, record.streams > 1)

    def __str__(self) -> str:
        return f"{self.op}{self.way}"

    @property
    def way(self) -> str:
        """How it is measured, where that is not the usual way: ` backward`, ` in graph mode`."""
        backward = "" if self.direction is Direction.FORWARD else f" {self.direction}"
        graph = " in graph mode" if self.mode is Mode.GRAPH else ""
        return backward + graph + (" on several streams" if self.at_once else "")


def named(groups: Iterable[Group]) -> str:
    """`decode_dense, decode_step in graph mode`: of groups that are measured in one way."""
    groups = list(groups)
    return ", ".join(group.op for group in groups) + groups[0].way
