"""The journal of a run: one JSON line a finished case, fsynced before the next case starts."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from pathlib import Path
from typing import Annotated, BinaryIO, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from nsabench.errors import UsageError
from nsabench.model.description import Described
from nsabench.model.outcome import Ceilings, Conditions, Outcome


class Header(BaseModel):
    """Written each time a run is started or resumed, before its next case."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["header"] = "header"
    run_id: str
    plan_sha256: str = ""  # of plan.yaml; empty in journals written before it was recorded
    # The version of every distribution that brings implementations.
    distributions: dict[str, str] = {}
    started: datetime
    described: Described
    ceilings: Ceilings


class Entry(BaseModel):
    """Everything measured on one case: all its outcomes, since they were interleaved."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["case"] = "case"
    case_id: str
    outcomes: list[Outcome]
    conditions: dict[int, Conditions] = {}  # by session
    wall_s: float = 0.0
    measuring_s: float = 0.0


class Confirmation(BaseModel):
    """A second look, in another process, at cells of a case whose verdict hangs on little."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["confirmation"] = "confirmation"
    case_id: str
    outcomes: list[Outcome] = []
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0
    reason: str = ""  # why there are no outcomes, if there are none


class Apart(BaseModel):
    """The baselines of a case in a process that never imported a candidate."""

    model_config = ConfigDict(extra="forbid")

    kind: Literal["apart"] = "apart"
    case_id: str
    outcomes: list[Outcome] = []
    conditions: Conditions = Conditions()
    measuring_s: float = 0.0
    reason: str = ""  # why there are no outcomes, if there are none


Line = Header | Entry | Confirmation | Apart
LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


@dataclass
class Contents:
    """All whole lines of a journal."""

    headers: list[Header] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    confirmations: list[Confirmation] = field(default_factory=list)
    apart: list[Apart] = field(default_factory=list)

    @property
    def ceilings(self) -> Ceilings:
        """What the device was measured to do at best, and the worst that its timer was off: a run
        that was resumed was calibrated each time. Raises `ValueError` without a header."""
        first, *later = (header.ceilings for header in self.headers)
        return reduce(_best_of, later, first)

    @property
    def measuring_s(self) -> float:
        lines: list[Entry | Confirmation | Apart]
        lines = [*self.entries, *self.confirmations, *self.apart]
        return sum(line.measuring_s for line in lines)


def _best_of(one: Ceilings, other: Ceilings) -> Ceilings:
    def known(choose: Callable[..., float], *values: float | None) -> float | None:
        return choose((v for v in values if v is not None), default=None)

    rates = one.tflop_s.keys() | other.tflop_s.keys()
    return Ceilings(
        copy_gb_s=known(max, one.copy_gb_s, other.copy_gb_s),
        l2_gb_s=known(max, one.l2_gb_s, other.l2_gb_s),
        tflop_s={d: max(one.tflop_s.get(d, 0.0), other.tflop_s.get(d, 0.0)) for d in sorted(rates)},
        timer_floor_ms=known(min, one.timer_floor_ms, other.timer_floor_ms),
        timer_offset_ms=known(min, one.timer_offset_ms, other.timer_offset_ms),
        known_duration_error=known(
            partial(max, key=abs), one.known_duration_error, other.known_duration_error
        ),
    )


class Journal:
    """Append-only. Opening one for append removes a torn last line, and only that."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: BinaryIO = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise UsageError(
                f"{path.parent} is being written by another nsabench",
                "wait for it, or give --out another folder.",
            ) from None
        contents, whole = _read(path)
        self.done = {entry.case_id for entry in contents.entries}
        self.confirmed = {line.case_id for line in contents.confirmations}
        self.apart = {line.case_id for line in contents.apart}
        self._file.truncate(whole)

    def append(self, line: Line) -> None:
        """Raises `OSError` when the disk is full; the torn line is forgiven on resume."""
        self._file.write(line.model_dump_json().encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        if isinstance(line, Entry):
            self.done.add(line.case_id)
        elif isinstance(line, Confirmation):
            self.confirmed.add(line.case_id)
        elif isinstance(line, Apart):
            self.apart.add(line.case_id)

    def close(self) -> None:
        self._file.close()


def read(path: Path) -> Contents:
    """All whole lines. Raises `UsageError` when a line other than a torn last one is broken."""
    return _read(path)[0]


def _read(path: Path) -> tuple[Contents, int]:
    contents, whole = Contents(), 0
    try:
        text = path.read_bytes()
    except OSError as error:
        raise UsageError(
            f"{path} cannot be read: {error.strerror}", "give the folder that nsabench made."
        ) from None
    # Only a newline ends a line: a stray \r must not pass for a torn last one.
    for number, line in enumerate(text.split(b"\n")[:-1], 1):
        try:
            parsed = LINE.validate_json(line)
        except ValidationError:
            raise UsageError(
                f"{path}:{number}: not a line of a run's journal",
                "the file was altered or the disk is bad: start a new run.",
            ) from None
        match parsed:
            case Header():
                contents.headers.append(parsed)
            case Entry():
                contents.entries.append(parsed)
            case Confirmation():
                contents.confirmations.append(parsed)
            case Apart():
                contents.apart.append(parsed)
        whole += len(line) + 1
    return contents, whole
