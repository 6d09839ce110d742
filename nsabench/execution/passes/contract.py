"""What a pass is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from nsabench.assessment.verdict import Judgement, Key
from nsabench.execution.protocol import Spare
from nsabench.execution.supervisor.executor import WorkerExecutor
from nsabench.execution.supervisor.group import OnLoss
from nsabench.model.case import Case
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName


class Judge(Protocol):
    """The verdicts on what is journaled so far; asked only by a pass that needs them."""

    def __call__(self) -> Mapping[Key, Judgement]: ...


def _as_planned(case: Case) -> Case:
    return case


def _nobody(plan: Plan) -> Mapping[str, Spare]:
    return {}


@dataclass(frozen=True)
class Pass:
    """One look at some cases of a plan.

    cells: by case id, the implementations that are measured together, in the order of the plan.
    start: an executor whose processes import what this pass may import, for the run in a folder.
    spares: by case id, who of it need not be measured as the others are.
    on_loss: what is done when such a process is lost.
    timing: the case as this pass times it.
    first_session: its sessions count from here, so that those of two passes never meet.
    announcement: what is said of a case before it is measured, {case} being its label; empty for
      the pass that a progress table is drawn of.
    partial: its processes import some of the plan's sources only.
    """

    name: PassName
    cells: Callable[[Plan, Judge], dict[str, list[str]]]
    start: Callable[[Plan, Path], WorkerExecutor]
    on_loss: OnLoss
    first_session: int
    spares: Callable[[Plan], Mapping[str, Spare]] = _nobody
    timing: Callable[[Case], Case] = _as_planned
    announcement: str = ""
    partial: bool = False
