"""The checks. Each module of this folder with a function `check` is one; adding a file adds one.

    check(rows: Sequence[Row], limits: Limits) -> list[Finding]

It is pure: rows in, findings out, no device, no torch. `controls` comes last, since it judges the
other checks.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache
from typing import TYPE_CHECKING

from nsabench.checks.finding import HARMLESS, Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.checks.row import Row

if TYPE_CHECKING:
    from nsabench.model.vocabulary import Catch

__all__ = ["HARMLESS", "Effect", "Finding", "Limits", "Row", "all_checks", "judge_all", "run_all"]

Check = Callable[[Sequence[Row], Limits], list[Finding]]


@cache
def all_checks() -> dict[str, Check]:
    """Every check, by the name of its module."""
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    return {m.__name__.rpartition(".")[2]: m.check for m in modules if hasattr(m, "check")}


def run_all(rows: Sequence[Row], limits: Limits) -> list[Finding]:
    """What every check finds in the rows of one run, the gravest first."""
    return judge_all(rows, limits)[0]


def judge_all(
    rows: Sequence[Row], limits: Limits
) -> tuple[list[Finding], dict[tuple[str, str], Catch]]:
    """As `run_all`, and what became of each control, by case and name."""
    from nsabench.checks import controls

    findings = [finding for check in all_checks().values() for finding in check(rows, limits)]
    catches = controls.catches(rows, findings)
    findings += controls.judge(rows, catches)
    gravity = list(Effect)
    return sorted(findings, key=lambda f: gravity.index(f.effect)), catches
