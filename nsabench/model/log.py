"""Define the log of a run: its sessions, the jobs that were begun, and how each ended."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial, reduce
from typing import Annotated, Literal

from pydantic import Field, TypeAdapter

from nsabench.model.description import Described
from nsabench.model.job import Death, Job
from nsabench.model.measurement import Ceilings, Conditions, Message, Observation
from nsabench.model.vocabulary import Purpose


class WriterSession(Message):
    """A process begins to measure. The line of this entry also holds the key that signs the log."""

    kind: Literal["session"] = "session"
    run_id: str
    plan_sha256: str  # of plan.json
    environment_sha256: str  # of environment.json
    started: datetime
    machine: str = ""  # a hash of the run id and the identity of the machine
    distributions: dict[str, str] = Field(default={})  # versions by name
    described: Described
    ceilings: Ceilings


class Begun(Message):
    """A job begins. If no `Ended` follows, the process that measured was killed."""

    kind: Literal["begun"] = "begun"
    job: Job


class Observed(Message):
    kind: Literal["observed"] = "observed"
    observation: Observation


class Ended(Message):
    kind: Literal["ended"] = "ended"
    death: Death | None = None  # None: the worker answered, or the job was interrupted
    interrupted: bool = False  # by a person, or by an error that the user must correct
    conditions: Conditions = Conditions()
    wall_s: float = 0.0
    measuring_s: float = 0.0  # the part of wall_s in kernels and compilation


Entry = WriterSession | Begun | Observed | Ended


class LogSigner(Message):
    keyid: str
    public_key: str  # DER in base64
    ephemeral: bool  # whether the key was made for this run alone


class LogLine(Message):
    """A line of the log. Only the line that begins a session has a signer."""

    previous: str = ""  # the sha256 of the previous line
    entry: Annotated[Entry, Field(discriminator="kind")]
    signer: LogSigner | None = None
    seal: str = ""  # the signature of the line without this field, in base64


LINE: TypeAdapter[LogLine] = TypeAdapter(LogLine)


@dataclass
class Attempt:
    job: Job
    sandbox: str = ""  # what the sandbox of the worker denies
    observations: list[Observation] = field(default_factory=list)
    ended: Ended | None = None  # None: the measuring process was killed

    @property
    def has_answer(self) -> bool:
        return self.ended is not None and self.ended.death is None and not self.ended.interrupted


@dataclass
class Log:
    sessions: list[WriterSession] = field(default_factory=list)
    _by_case: dict[tuple[Purpose, str], list[Attempt]] = field(default_factory=dict)
    _last: Attempt | None = None

    def add(self, entry: Entry) -> None:
        """Add an entry. Raises `ValueError` for an observation or an end if no job is open."""
        match entry:
            case WriterSession():
                self.sessions.append(entry)
                self._last = None
            case Begun():
                self._last = Attempt(entry.job, self._sandbox)
                place = entry.job.purpose, entry.job.case.id
                self._by_case.setdefault(place, []).append(self._last)
            case Observed() | Ended():
                if self._last is None:
                    raise ValueError("it belongs to a job, but no job is open")
                if isinstance(entry, Observed):
                    self._last.observations.append(entry.observation)
                else:
                    self._last.ended, self._last = entry, None

    def extend(self, *entries: Entry) -> None:
        for entry in entries:
            self.add(entry)

    def attempts_of(self, purpose: Purpose, case_id: str) -> list[Attempt]:
        return self._by_case.get((purpose, case_id), [])

    def only(self, *purposes: Purpose) -> Log:
        kept = {place: made for place, made in self._by_case.items() if place[0] in purposes}
        return Log(self.sessions, kept)

    @property
    def _sandbox(self) -> str:
        return (self.sessions[-1].described.sandbox or "") if self.sessions else ""

    @property
    def attempts(self) -> list[Attempt]:
        return [attempt for attempts in self._by_case.values() for attempt in attempts]

    @property
    def ceilings(self) -> Ceilings:
        """The best rates, least timer floor and worst timer error of the sessions."""
        first, *later = (session.ceilings for session in self.sessions)
        return reduce(_best_of, later, first)

    @property
    def wall_s(self) -> float:
        return sum(attempt.ended.wall_s for attempt in self.attempts if attempt.ended)

    @property
    def measuring_s(self) -> float:
        return sum(attempt.ended.measuring_s for attempt in self.attempts if attempt.ended)


def _best_of(first: Ceilings, other: Ceilings) -> Ceilings:
    def best(name: str, choose: Callable[..., float]) -> float | None:
        values = (getattr(first, name), getattr(other, name))
        return choose((v for v in values if v is not None), default=None)

    rates = [*first.tflop_s.items(), *other.tflop_s.items()]
    return Ceilings(
        copy_gb_s=best("copy_gb_s", max),
        l2_gb_s=best("l2_gb_s", max),
        tflop_s={dtype: max(r for d, r in rates if d == dtype) for dtype in sorted(dict(rates))},
        timer_floor_ms=best("timer_floor_ms", min),
        timer_offset_ms=best("timer_offset_ms", min),
        known_duration_error=best("known_duration_error", partial(max, key=abs)),
        cpu_flush_bytes=other.cpu_flush_bytes,
    )
