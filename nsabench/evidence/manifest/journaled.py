"""What the journal of a run holds, as far as its tables and its manifest depend on it.

A journal may be large, so it is read line by line. That of a merged run is read on all cores, the
journal of each shard by itself.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from nsabench import limits
from nsabench.errors import UsageError, VerificationFailed
from nsabench.evidence.manifest.same import same, same_members
from nsabench.execution import joined, journal
from nsabench.execution.chain import Origin
from nsabench.execution.joined import Piece, Segment
from nsabench.model.description import Described
from nsabench.model.journal import Entry, Header, Line, Sitting
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName
from nsabench.processes import each


@dataclass
class Journaled:
    """What a journal, or a piece of one, holds.

    cases: how often the first look at each was journaled. samples, bursts: how many there are.
    described: by the first header. environments: the sha256 of environment.json, by the headers.
    origin: who vouches for all lines.
    segments: the same for a merged run, by the run id of each shard.
    """

    lines: int = 0
    cases: Counter[object] = field(default_factory=Counter)
    samples: int = 0
    bursts: int = 0
    described: Described | None = None
    environments: set[str] = field(default_factory=set)
    origin: Origin | None = None
    segments: dict[str, Segment] = field(default_factory=dict)

    def __str__(self) -> str:
        return f"{self.cases.total()} cases"

    def as_piece(self, run_id: str) -> Journaled:
        """Return the journal of one run as a piece of the journal of a merged run."""
        assert self.origin is not None
        segment = Segment(self.origin.sha256, self.origin, frozenset(self.environments))
        return replace(self, origin=None, segments={run_id: segment})

    def add(self, piece: Journaled) -> None:
        """Add the next piece of the journal of a merged run. Raises `VerificationFailed` if an
        earlier piece has lines of the same run."""
        for run_id in piece.segments.keys() & self.segments.keys():
            raise VerificationFailed(joined.apart(run_id))
        self.segments |= piece.segments
        self.lines += piece.lines
        self.cases += piece.cases
        self.samples += piece.samples
        self.bursts += piece.bursts
        self.described = self.described or piece.described
        self.environments |= piece.environments


@dataclass(frozen=True)
class Known:
    """Shards that were verified before. The merged run that holds their plans and journals to the
    byte is verified without reading these files a second time."""

    runs: Sequence[tuple[Plan, Journaled]] = ()

    def plans(self) -> dict[str, Plan]:
        """By the sha256 of plan.json."""
        return {plan.sha256: plan for plan, _ in self.runs}

    def journals(self, merged: Plan) -> dict[str, Journaled]:
        """By the sha256 of journal.jsonl, the pieces of the journal of the merged run, for the
        shards that its plan names, with the plans that it names."""
        return {
            journaled.origin.sha256: journaled.as_piece(plan.run_id)
            for plan, journaled in self.runs
            if journaled.origin is not None and merged.openings.get(plan.run_id) == plan.sha256
        }


NOTHING = Known()


class _Reader:
    """Reads the journal of one plan."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._openings = plan.openings
        measured = len(plan.cases) + len(plan.shards)
        self._most = limits.SITTINGS + limits.LINES_A_CASE * measured
        self.found = Journaled()

    def piece(self, path: Path, piece: Piece) -> Journaled:
        """Return what a piece of the journal holds."""
        self.found = Journaled()
        self.found.segments = joined.segments(path, self.take, piece)
        return self.found

    def take(self, line: Line) -> None:
        """Take a line. Raises `VerificationFailed` if it is of another run, or one of too many."""
        found = self.found
        found.lines += 1
        self.refuse_many(found.lines)  # each may have a seal to check
        if isinstance(line, Sitting | Header):
            if line.run_id not in self._openings:
                same("run_id", line.run_id, self._plan.run_id)
            same("sha256 of plan.json", line.plan_sha256, self._openings[line.run_id])
        if isinstance(line, Header):
            found.described = found.described or line.described
            found.environments.add(line.environment_sha256)
        elif isinstance(line, Entry) and line.pass_name is PassName.FIRST_LOOK:
            # If there are more cases than were planned, one more is enough to say so.
            if line.case_id in found.cases or len(found.cases) <= len(self._plan.cases):
                found.cases[line.case_id] += 1
            outcomes = {o.implementation: o for o in line.outcomes}.values()
            found.samples += sum(len(o.samples.time_ms) for o in outcomes)
            found.bursts += sum(len(o.bursts.time_ms) for o in outcomes)

    def refuse_many(self, lines: int) -> None:
        """Raise `VerificationFailed` if there are more lines than a run of the plan has."""
        if lines > self._most:
            count = len(self._plan.cases)
            raise VerificationFailed(f"more than {self._most} lines for {count} cases")


def check_journal(
    folder: Path,
    plan: Plan,
    seen: Callable[[Line], None] | None = None,
    known: Known = NOTHING,
) -> Journaled:
    """Read the journal as `read_journal` does, and check that it holds every case once."""
    journaled = read_journal(folder, plan, seen, known)
    if journaled.described is None:
        raise VerificationFailed("journal.jsonl has no header")
    planned: Counter[object] = Counter(case.id for case in plan.cases)
    same_members("journal.jsonl: case", journaled.cases, planned)
    return journaled


def read_journal(
    folder: Path,
    plan: Plan,
    seen: Callable[[Line], None] | None = None,
    known: Known = NOTHING,
) -> Journaled:
    """Return what the journal of this run holds, and the key that vouches for it. seen: called with
    each line, unless the run is merged."""
    try:
        return _read(folder / "journal.jsonl", plan, seen, known)
    except (OSError, UsageError, VerificationFailed) as error:
        raise VerificationFailed(f"journal.jsonl: {error}") from None


def _read(path: Path, plan: Plan, seen: Callable[[Line], None] | None, known: Known) -> Journaled:
    reader = _Reader(plan)

    def take(line: Line) -> None:
        reader.take(line)
        if seen is not None:
            seen(line)

    if not plan.shards:
        origin = journal.origin(path, take)
        reader.found.origin = origin
        return reader.found
    whole = Journaled()
    pieces = joined.pieces(path, reader.refuse_many)
    journals = known.journals(plan)
    found = [journals.get(piece.sha256) for piece in pieces]
    unknown = [piece for piece, there in zip(pieces, found, strict=True) if there is None]
    read = each(lambda piece: reader.piece(path, piece), unknown)
    for there in found:
        whole.add(next(read) if there is None else there)
        reader.refuse_many(whole.lines)
    return whole
