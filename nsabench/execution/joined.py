"""The journal of a merged run: those of its shards one behind the other, each to the byte as its
host left it.

So every line is still vouched for by whoever measured it, and not by whoever merged.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from nsabench.errors import VerificationFailed
from nsabench.execution import chain, journal
from nsabench.execution.chain import Origin
from nsabench.model.journal import Header, Line, Sitting

# How the first line of a run begins, as it is written.
_BEGINS = re.compile(rb'\{"previous":"[0-9a-f]*","kind":"sitting","run_id":"([^"\\]*)"')


@dataclass(frozen=True)
class Segment:
    """The journal of one shard. sha256: of its bytes; origin: who vouches for its lines;
    environments: the sha256 of its environment.json, as its headers say."""

    sha256: str
    origin: Origin | None
    environments: frozenset[str]


@dataclass(frozen=True)
class Piece:
    """Lines of a journal. start, stop: the bytes where they begin and end, None: with the file;
    above: lines that stand above them; sha256: of its bytes when it was cut."""

    start: int
    stop: int | None
    above: int
    sha256: str


def pieces(path: Path, refuse_many: Callable[[int], None]) -> list[Piece]:
    """The journal cut where, by a look at its bytes, another run begins. Whether it does is for who
    reads the pieces to see: a run is in one of them. refuse_many: is told of each line how many
    there are by then, and raises for too many. Raises as `journal.lines` does."""
    cuts, last, at = [(0, 0)], b"", 0
    digests = [hashlib.sha256()]
    for number, content in enumerate(journal.contents(path)):
        refuse_many(number + 1)  # a cut takes more room than the line that it is before
        begins = _BEGINS.match(content)
        if begins and begins[1] != last:
            last = begins[1]
            if at:
                cuts.append((at, number))
                digests.append(hashlib.sha256())
        digests[-1].update(content)
        at += len(content)
    ends = [start for start, _ in cuts[1:]]
    return [
        Piece(start, stop, above, digest.hexdigest())
        for (start, above), stop, digest in zip(cuts, [*ends, None], digests, strict=True)
    ]


def segments(path: Path, take: Callable[[Line], None], piece: Piece) -> dict[str, Segment]:
    """The segments of a piece by run. Each line is handed to `take`, as `journal.origin` does.

    Raises as `journal.origin`, and `VerificationFailed` when the lines of a run lie apart.
    """
    found: dict[str, Segment] = {}
    for run_id, pairs in groupby(_named(path, piece), key=lambda named: named[0]):
        if run_id in found:
            raise VerificationFailed(apart(run_id))
        found[run_id] = _segment(((content, line) for _, content, line in pairs), take)
    return found


def apart(run_id: str) -> str:
    return f"the lines of run {run_id} lie in several places"


def _named(path: Path, piece: Piece) -> Iterator[tuple[str, bytes, Line]]:
    """Each line with the run that it is of: only a sitting and a header name it."""
    run_id = ""
    for content, line in journal.lines(path, piece.start, piece.stop, piece.above):
        if isinstance(line, Sitting | Header):
            run_id = line.run_id
        yield run_id, content, line


def _segment(pairs: Iterator[tuple[bytes, Line]], take: Callable[[Line], None]) -> Segment:
    digest = hashlib.sha256()
    environments = set()

    def taken() -> Iterator[tuple[bytes, Line]]:
        for content, line in pairs:
            yield content, line
            digest.update(content + b"\n")
            if isinstance(line, Header):
                environments.add(line.environment_sha256)
            take(line)

    origin = chain.origin(taken())
    return Segment(digest.hexdigest(), origin, frozenset(environments))
