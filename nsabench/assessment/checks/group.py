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


class Group(NamedTuple):
    """The cases of an op in one direction and mode."""

    op: str
    direction: Direction
    mode: Mode

    @classmethod
    def of(cls, record: Grouped) -> Group:
        return cls(record.op, record.direction, record.mode)

    def __str__(self) -> str:
        return f"{self.op}{self.way}"

    @property
    def way(self) -> str:
        """How it is measured, where that is not the usual way: ` backward`, ` in graph mode`."""
        backward = " backward" if self.direction is Direction.BACKWARD else ""
        return backward + (" in graph mode" if self.mode is Mode.GRAPH else "")


def named(groups: Iterable[Group]) -> str:
    """`decode_dense, decode_step in graph mode`: of groups that are measured in one way."""
    groups = list(groups)
    return ", ".join(group.op for group in groups) + groups[0].way
