"""Whether anybody looked at a run's candidates from outside their process, by its journal."""

from __future__ import annotations

import re
from pathlib import Path

from nsabench.errors import UsageError
from nsabench.execution import journal
from nsabench.model.journal import Entry, Line
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Role

_LOOKED = re.compile(rb'"outside":\s*\{')  # somebody looked, or at least was asked to


class Looks:
    """Taken line by line. any: whether a candidate's calls were timed by the supervisor's clock,
    on some case at least."""

    def __init__(self, plan: Plan) -> None:
        candidates = {(i.op, i.name) for i in plan.implementations if i.role is Role.CANDIDATE}
        self._candidates = {
            case.id: {name for name in case.implementations if (case.case.op, name) in candidates}
            for case in plan.cases
        }
        self.any = False

    def take(self, line: Line) -> None:
        """One line of the journal of the run."""
        if not self.any and isinstance(line, Entry):
            names = self._candidates.get(line.case_id, ())
            self.any = any(
                o.outside is not None and o.outside.calls > 0 and o.implementation in names
                for o in line.outcomes
            )


def seen_from_outside(path: Path, plan: Plan) -> bool:
    """path: a journal. One that cannot be read shows no look, and `verify` says what is wrong."""
    looks = Looks(plan)
    try:
        # Of a whole fleet nobody may have looked, and its lines take long to read.
        if not any(map(_LOOKED.search, journal.contents(path))):
            return False
        for _, line in journal.lines(path):
            looks.take(line)
            if looks.any:
                return True
    except UsageError:
        return False
    return False
