"""The checks: each reports doubts about results. A check needs neither a device nor torch.

`nsabench explain` and the report show the docstring of a check.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence

from nsabench.checks import controls
from nsabench.checks.finding import HARMLESS, Effect, Finding, by_gravity
from nsabench.checks.parity import check_parity
from nsabench.checks.roofline import (
    DeviceLimits,
    check_baseline,
    check_cliff,
    check_roofline,
    check_scaling,
)
from nsabench.checks.timing import (
    check_burst,
    check_clocks,
    check_host,
    check_ordering,
    check_timer,
)
from nsabench.model.record import Record

__all__ = ["HARMLESS", "DeviceLimits", "Effect", "Finding", "by_gravity"]

Check = Callable[[Sequence[Record], DeviceLimits], list[Finding]]
# If findings about a record are equally grave, the first check in this order gives the reason.
CHECKS: Mapping[str, Check] = {
    "baseline": check_baseline,
    "burst": check_burst,
    "cliff": check_cliff,
    "clocks": check_clocks,
    "host": check_host,
    "ordering": check_ordering,
    "parity": check_parity,
    "roofline": check_roofline,
    "scaling": check_scaling,
    "timer": check_timer,
}


def describe_check(name: str) -> str:
    return inspect.getdoc(CHECKS.get(name, controls)) or ""


def run_checks(
    records: Sequence[Record], limits: DeviceLimits
) -> tuple[list[Finding], list[Record]]:
    """Return the findings, the gravest first, and the records, with `caught` set for controls."""
    findings = [finding for check in CHECKS.values() for finding in check(records, limits)]
    records = controls.set_catches(records, findings)
    return by_gravity([*findings, *controls.find_failures(records)]), records
