"""The journal of a merged run: those of its shards one behind the other, each to the byte as its
host left it.

So every line is still vouched for by whoever measured it, and not by whoever merged.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from nsabench.errors import VerificationFailed
from nsabench.execution import chain, journal
from nsabench.execution.chain import Origin
from nsabench.model.journal import Header, Line, Sitting


@dataclass(frozen=True)
class Segment:
    """The journal of one shard. sha256: of its bytes; origin: who vouches for its lines;
    environments: the sha256 of its environment.json, as its headers say."""

    sha256: str
    origin: Origin | None
    environments: frozenset[str]


def segments(path: Path, take: Callable[[Line], None]) -> dict[str, Segment]:
    """The segments by run. Each line is handed to `take`, as `journal.origin` does.

    Raises as `journal.origin`, and `VerificationFailed` when the lines of a run lie apart.
    """
    found: dict[str, Segment] = {}
    for run_id, pairs in groupby(_named(path), key=lambda named: named[0]):
        if run_id in found:
            raise VerificationFailed(f"the lines of run {run_id} lie in several places")
        found[run_id] = _segment(((content, line) for _, content, line in pairs), take)
    return found


def _named(path: Path) -> Iterator[tuple[str, bytes, Line]]:
    """Each line with the run that it is of: only a sitting and a header name it."""
    run_id = ""
    for content, line in journal.lines(path):
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
