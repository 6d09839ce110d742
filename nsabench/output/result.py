"""Describes a finished run for programs. Fields are only ever added."""

from collections import Counter
from typing import Any

from nsabench import labels
from nsabench.model.vocabulary import Role
from nsabench.output.standing import name_untried
from nsabench.running.run import Finished
from nsabench.verdicts import threshold
from nsabench.verdicts.thresholds_yaml import as_data as thresholds_as_data

NOT_TRIED = 5  # the exit code where no candidate was tried, as pytest without a test
COMPLETE = (0, 1, NOT_TRIED)  # exit codes of a complete run
OF_A_CANDIDATE = (
    *("case_id", "op", "implementation", "dtype", "direction", "distribution", "mode"),
    *("length", "status", "reason", "diagnosis", "median_ms", "best_baseline", "speedup"),
    *("speedup_lo", "speedup_hi", "verdict", "caution", "package", "package_version", "licence"),
)


def exit_code(run: Finished) -> int:
    """Return 1 if something failed, 5 if no candidate was tried, and 0 otherwise."""
    if run.results.failures:
        return 1
    return NOT_TRIED if name_untried(run.plan, run.results.records) else 0


def as_data(run: Finished, signature: str = "") -> dict[str, Any]:
    """Return the result. Without a signature, nothing is decided."""
    records = run.results.records
    decisions = threshold.decide_run(records, run.plan) if signature else []
    broken = run.results.failures
    return {
        "run_id": run.plan.run_id,
        "folder": str(run.folder.path),
        "wall_s": run.wall_s,
        "failures": broken,
        "exit_code": exit_code(run),
        "controls": Counter(r.caught for r in records if r.caught),
        "candidates": [
            {
                **{name: getattr(record, name) for name in OF_A_CANDIDATE},
                "case": labels.case(record),
                "shape": dict(record.shape),
            }
            for record in records
            if record.role is Role.CANDIDATE
        ],
        "thresholds": thresholds_as_data(decisions) if decisions else None,
        "signature": signature,
    }
