"""What was signed of the records in brief, held against what they say."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq

from nsabench import limits
from nsabench.assessment.checks.group import Group
from nsabench.assessment.tables import RECORDS, batches, misfit, rows_of
from nsabench.errors import VerificationFailed
from nsabench.evidence.manifest.seal import controls_caught
from nsabench.evidence.manifest.statement import Predicate
from nsabench.model.record import Record
from nsabench.model.vocabulary import Catch, Direction, Mode
from nsabench.reading import OutOfBounds

NEEDED = ("op", "caught_by", "gpu_name")


class Stated(NamedTuple):
    """What a record states of where it was measured and, of a control, of what became of it. Very
    many records state the same."""

    gpu_name: str | None
    torch: str | None
    triton: str | None
    cuda: str | None
    op: str | None
    direction: str | None
    mode: str | None
    streams: str | None
    caught_by: str | None
    caught: str | None

    @classmethod
    def of(cls, record: Record) -> Stated:
        values = (getattr(record, name) for name in cls._fields)
        return cls(*(None if value is None else str(value) for value in values))

    @classmethod
    def of_row(cls, row: Mapping[str, Any]) -> Stated:
        values = (row.get(name) for name in cls._fields)
        return cls(*(None if value is None else str(value) for value in values))


def stated(path: Path) -> set[Stated]:
    """What the records of a table state, once `check_table` has passed it. Raises `OutOfBounds`
    when they are none, or state too many things, and as a table does that cannot be read."""
    schema = pq.read_schema(path)
    wrong = misfit(schema, RECORDS, NEEDED)
    if wrong:
        raise OutOfBounds(wrong)
    found: set[Stated] = set()
    for part in batches(path, [name for name in Stated._fields if name in schema.names]):
        found.update(map(Stated.of_row, rows_of(part)))
        if len(found) > limits.STATED:
            raise OutOfBounds(f"states more than {limits.STATED} different things")
    return found


def check(records: Collection[Stated], predicate: Predicate) -> None:
    """What was signed about the records in brief is what they say.

    Raises `VerificationFailed` when it is something else, such as another GPU.
    """
    signed = predicate.environment
    if predicate.plan.device == "cuda":
        for gpu in _different(record.gpu_name for record in records):
            if not is_device(signed.gpu or "", gpu):
                _same("gpu", signed.gpu or "", gpu or "")
    for name in ("torch", "triton", "cuda"):
        brief = getattr(signed, name)
        for measured in _different(getattr(r, name) for r in records) if brief is not None else ():
            _same(name, brief, measured)
    try:
        caught = controls_caught(
            (
                Group(
                    r.op or "",
                    Direction(r.direction or ""),
                    Mode(r.mode or ""),
                    int(r.streams or 1) > 1,
                ),
                r.caught_by or "",
                Catch(r.caught),
            )
            for r in records
            if r.caught
        )
    except ValueError as error:
        raise VerificationFailed(f"records.parquet holds a control of {error}") from None
    _same("controls_caught", predicate.controls_caught, caught)


def is_device(named: str, measured: str | None) -> bool:
    """Whether a device is the one of that name: torch adds to it the slice that it sees."""
    return (measured or "") == named or (measured or "").startswith(f"{named} MIG ")


def _different(values: Iterable[str | None]) -> list[str | None]:
    return sorted(set(values), key=lambda value: value or "")


def _same(name: str, signed: object, measured: object) -> None:
    if signed != measured:
        raise VerificationFailed(
            f"what was signed: {name} is {signed!r} and should be {measured!r}"
        )
