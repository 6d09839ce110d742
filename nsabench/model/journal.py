"""The lines of a journal: a sitting and a header a start or resumption, an entry a case and pass,
and what was begun when a process was killed.

`execution.journal` reads and writes them, `execution.chain` says who vouches for them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from nsabench.model.description import Described
from nsabench.model.measurement import Ceilings, Conditions, Outcome
from nsabench.model.vocabulary import PassName


class Linked(BaseModel):
    """A line of the chain that a journal is.

    previous: the sha256 of the line before, its seal included; empty in the first line. seal: the
    signature of the sitting's key over all of the line except the seal, in base64.
    """

    model_config = ConfigDict(extra="forbid")

    previous: str = ""
    seal: str = ""


class Certificate(BaseModel):
    """That the key of a signer vouches for a sitting. public_key: base64 of the DER form;
    signature: over what `execution.chain.certified` says, in base64."""

    model_config = ConfigDict(extra="forbid")

    keyid: str
    public_key: str
    ephemeral: bool  # what the signer says of its key
    signature: str


class Sitting(Linked):
    """Who measures from here on: one process, on one machine, in the name of one signer.

    machine: a hash of the run and what identifies the machine, empty where nothing does. key: the
    public half of a key that only that process has and that ends with it, base64 of the DER form.
    """

    kind: Literal["sitting"] = "sitting"
    run_id: str
    plan_sha256: str
    started: datetime
    machine: str
    key: str
    certificate: Certificate


class Header(Linked):
    """Written each time a run is started or resumed, before its next case."""

    kind: Literal["header"] = "header"
    run_id: str
    plan_sha256: str  # of plan.json
    environment_sha256: str  # of environment.json
    # The version of every distribution that brings implementations.
    distributions: dict[str, str] = {}
    started: datetime
    described: Described
    ceilings: Ceilings


# Small ones: large numbers can be chosen so that a table of them takes the square of its size.
Session = Annotated[int, Field(ge=0, lt=1 << 31)]


class Entry(Linked):
    """What one pass measured on one case.

    conditions: by session, the state of the device. reason: why there are no outcomes, if there are
    none. wall_s: seconds of the whole; measuring_s: of these inside kernels and compilation;
    queue_s: of these for bursts, and for counting launches.
    """

    kind: Literal["entry"] = "entry"
    pass_name: PassName
    case_id: str
    outcomes: list[Outcome] = []
    conditions: dict[Session, Conditions] = {}
    wall_s: float = 0.0
    measuring_s: float = 0.0
    queue_s: float = 0.0
    reason: str = ""

    @property
    def conditions_that_count(self) -> list[Conditions]:
        """Of the sessions that its outcomes come from; others were measured again."""
        sessions = {outcome.session for outcome in self.outcomes}
        return [state for session, state in self.conditions.items() if session in sessions]


class Begun(Linked):
    """What a process that measures is busy with: the last line, until the next takes its place.

    So one that another line follows, or that ends a journal, is of a process that was killed while
    it was busy with that. implementations: those that were measured together; implementation: the
    one that the worker said it was calling, if it named one; phase: what for.
    """

    kind: Literal["begun"] = "begun"
    pass_name: PassName
    case_id: str
    implementations: list[str]
    phase: str = ""
    implementation: str = ""


Line = Sitting | Header | Begun | Entry
LINE: TypeAdapter[Line] = TypeAdapter(Annotated[Line, Field(discriminator="kind")])


@dataclass
class Contents:
    """All whole lines of a journal, in the order in which they were written."""

    headers: list[Header] = field(default_factory=list)
    entries: list[Entry] = field(default_factory=list)
    sittings: list[Sitting] = field(default_factory=list)
    killed: list[Begun] = field(default_factory=list)
    # By run, in a journal that was merged of several; its lines lie one run behind the other.
    by_run: dict[str, Contents] = field(default_factory=dict)
    _run: str = ""

    def add(self, line: Line) -> None:
        """Append a line to the kind that it is of, and to the run that the line before is of."""
        if isinstance(line, Sitting | Header):
            self._run = line.run_id
        self._append(line)
        if self._run:
            self.by_run.setdefault(self._run, Contents())._append(line)

    def _append(self, line: Line) -> None:
        if isinstance(line, Sitting):
            self.sittings.append(line)
        elif isinstance(line, Header):
            self.headers.append(line)
        elif isinstance(line, Begun):
            self.killed.append(line)
        else:
            self.entries.append(line)

    @property
    def openings(self) -> list[Sitting | Header]:
        """The lines that say of which run and plan the others are."""
        return [*self.sittings, *self.headers]

    def of(self, name: PassName) -> list[Entry]:
        """The entries of one pass."""
        return [entry for entry in self.entries if entry.pass_name is name]

    def killed_in(self, name: PassName, case_id: str) -> list[Begun]:
        """What the process was busy with each time that it was killed in a pass over a case."""
        return [b for b in self.killed if (b.pass_name, b.case_id) == (name, case_id)]

    def by_case(self, name: PassName) -> dict[str, Entry]:
        """The last entry of each case in one pass, by case id."""
        return {e.case_id: e for e in self.of(name)}

    @property
    def ceilings(self) -> Ceilings:
        """What the device was measured to do at best, and the worst that its timer was off: a run
        that was resumed was calibrated each time. Raises `ValueError` without a header."""
        first, *later = (header.ceilings for header in self.headers)
        return reduce(_best_of, later, first)

    @property
    def measuring_s(self) -> float:
        return sum(entry.measuring_s for entry in self.entries)

    @property
    def queue_s(self) -> float:
        return sum(entry.queue_s for entry in self.entries)


def _best_of(one: Ceilings, other: Ceilings) -> Ceilings:
    def best(choose: Callable[..., float], *values: float | None) -> float | None:
        return choose((v for v in values if v is not None), default=None)

    rates = one.tflop_s.keys() | other.tflop_s.keys()
    return Ceilings(
        copy_gb_s=best(max, one.copy_gb_s, other.copy_gb_s),
        l2_gb_s=best(max, one.l2_gb_s, other.l2_gb_s),
        tflop_s={d: max(one.tflop_s.get(d, 0.0), other.tflop_s.get(d, 0.0)) for d in sorted(rates)},
        timer_floor_ms=best(min, one.timer_floor_ms, other.timer_floor_ms),
        timer_offset_ms=best(min, one.timer_offset_ms, other.timer_offset_ms),
        known_duration_error=best(
            partial(max, key=abs), one.known_duration_error, other.known_duration_error
        ),
        cpu_flush_bytes=other.cpu_flush_bytes,
    )
