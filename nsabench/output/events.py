"""Prints a run for programs: a line of JSON for each event, and the result as the last line.

Fields are only ever added.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from typing import Any

from nsabench import labels
from nsabench.model.description import Described
from nsabench.model.measurement import Ceilings
from nsabench.model.plan import Plan, PlannedCase
from nsabench.model.vocabulary import Role
from nsabench.running.run import Finished
from nsabench.verdicts import threshold
from nsabench.verdicts.attempts import CaseState
from nsabench.verdicts.failures import failures
from nsabench.verdicts.threshold.document import as_data
from nsabench.worker.protocol import Step

OF_A_CANDIDATE = (
    *("case_id", "op", "implementation", "dtype", "direction", "distribution", "streams", "mode"),
    *("length", "status", "reason", "diagnosis", "median_ms", "best_baseline", "speedup"),
    *("speedup_lo", "speedup_hi", "verdict", "caution", "package", "package_version", "licence"),
)


class Events:
    def __enter__(self) -> Events:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def run_started(self, plan: Plan, described: Described, ceilings: Ceilings) -> None:
        _print(
            "run_started",
            run_id=plan.run_id,
            cases=len(plan.cases),
            device=described.device.name or plan.device,
            software=described.software.model_dump(mode="json"),
            ceilings=ceilings.model_dump(mode="json"),
        )

    def case_started(self, planned: PlannedCase, number: int, total: int) -> None:
        _print("case_started", **_name_case(planned), number=number, total=total)

    def step(self, step: Step) -> None:
        _print("step", phase=step.phase, implementation=step.implementation)

    def case_finished(self, planned: PlannedCase, state: CaseState) -> None:
        names = ("implementation", "status", "reason", "diagnosis")
        outcomes = [{name: getattr(o, name) for name in names} for o in state.observations]
        _print("case_finished", **_name_case(planned), wall_s=state.wall_s, outcomes=outcomes)

    def note(self, text: str) -> None:
        _print("note", text=text)


def finished(run: Finished, signature: str = "") -> None:
    """Print the result. Without a signature, nothing is decided."""
    records = run.results.records
    decisions = threshold.decide_run(records, run.plan) if signature else []
    broken = failures(run.results)
    candidates = [
        {
            **{name: getattr(record, name) for name in OF_A_CANDIDATE},
            "case": labels.case(record),
            "shape": dict(record.shape),
        }
        for record in records
        if record.role is Role.CANDIDATE
    ]
    _print(
        "finished",
        run_id=run.plan.run_id,
        folder=str(run.folder.path),
        wall_s=run.wall_s,
        failures=broken,
        exit_code=1 if broken else 0,
        controls=Counter(r.caught for r in records if r.caught),
        candidates=candidates,
        thresholds=as_data(decisions) if decisions else None,
        signature=signature,
    )


def _name_case(planned: PlannedCase) -> dict[str, Any]:
    return {"case_id": planned.id, "case": labels.of_case(planned.case)}


def _print(event: str, **fields: Any) -> None:
    sys.stdout.write(json.dumps({"event": event, **fields}, allow_nan=False) + "\n")
