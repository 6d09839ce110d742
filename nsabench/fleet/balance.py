"""What the cases of a plan cost, as an earlier run took for them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from nsabench.errors import UsageError
from nsabench.evidence.manifest import refuse_altered
from nsabench.execution import journal
from nsabench.execution.folder import RunFolder
from nsabench.model.plan import Plan, PlannedCase
from nsabench.planning.cost import by_work


@dataclass(frozen=True)
class Balance:
    """run_ids: of the earlier runs, with commas; none where there was none. seconds: that their
    passes took for each case, by id."""

    run_ids: str
    seconds: dict[str, float]

    def costs(self, cases: list[PlannedCase]) -> dict[str, float]:
        """The seconds of each case; one that no run had is estimated by its work, in proportion to
        those that they had."""
        estimated = by_work(cases)
        known = [c.id for c in cases if c.id in self.seconds]
        ratio = median(self.seconds[i] / estimated[i] for i in known) if known else 1.0
        return {i: self.seconds.get(i, estimated[i] * ratio) for i in estimated}


def of_runs(paths: Sequence[Path]) -> Balance:
    """What the runs took; of a case that several have, what the last of them took. Raises as
    `of_run` does."""
    runs = [of_run(path) for path in paths]
    seconds = {case_id: s for one in runs for case_id, s in one.seconds.items()}
    return Balance(", ".join(one.run_ids for one in runs), seconds)


def of_run(path: Path) -> Balance:
    """What a run took. Raises `UsageError` when there is none, and `VerificationFailed` when it was
    altered: hosts that read another file would make other shards."""
    folder = RunFolder.existing(path)
    refuse_altered(path)
    seconds: dict[str, float] = defaultdict(float)
    for entry in journal.read(folder.journal).entries:
        seconds[entry.case_id] += entry.wall_s
    if not seconds:
        raise UsageError(f"{path} has measured nothing", "give --balance a finished run.")
    return Balance(Plan.read(folder.plan).run_id, dict(seconds))
