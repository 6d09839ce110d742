"""The checks. Each module of this folder that has a function `check` is one.

    check(records: Sequence[Record], limits: Limits) -> list[Finding]

A check needs neither a device nor torch. `controls` comes last, because it judges the other checks.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Sequence
from functools import cache

from nsabench.checks.finding import HARMLESS, Effect, Finding
from nsabench.checks.limits import Limits
from nsabench.model.record import Record

__all__ = ["HARMLESS", "Effect", "Finding", "Limits", "all_checks", "judge_all", "run_all"]

Check = Callable[[Sequence[Record], Limits], list[Finding]]


@cache
def all_checks() -> dict[str, Check]:
    modules = (
        importlib.import_module(f"{__name__}.{module.name}")
        for module in pkgutil.iter_modules(__path__)
    )
    return {m.__name__.rpartition(".")[2]: m.check for m in modules if hasattr(m, "check")}


def run_all(records: Sequence[Record], limits: Limits) -> list[Finding]:
    return judge_all(records, limits)[0]


def judge_all(records: Sequence[Record], limits: Limits) -> tuple[list[Finding], list[Record]]:
    """Return the findings, and the records, in which each control has its `caught`."""
    from nsabench.checks import controls

    findings = [finding for check in all_checks().values() for finding in check(records, limits)]
    records = controls.with_catches(records, findings)
    findings += controls.judge(records)
    gravity = list(Effect)
    return sorted(findings, key=lambda f: gravity.index(f.effect)), records
