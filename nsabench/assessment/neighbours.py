"""What the neighbours of a device do to it: one case that was timed once while the shards on the
other devices of the host waited, and once while they measured it, too."""

from __future__ import annotations

from math import log

from nsabench.assessment import canary
from nsabench.assessment.checks.finding import Effect, Finding
from nsabench.model.journal import Contents
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import PassName, Role

CHECK = "neighbours"
APART = canary.APART  # what two processes of one host differ by
# So many baselines must be further apart, or all where there are fewer: one pair of medians in many
# is that far apart by chance.
CONFIRMED_BY = 2


def findings(plan: Plan, contents: Contents) -> list[Finding]:
    """What is said against all times of a shard that was measured beside others."""
    if not plan.neighbours or plan.canary is None:
        return []
    why = _why(plan, contents)
    return [Finding(CHECK, Effect.INCONCLUSIVE, why)] if why else []


def _why(plan: Plan, contents: Contents) -> str:
    alone = canary.of_contents(contents, PassName.ALONE)
    together = canary.of_contents(contents, PassName.TOGETHER)
    if alone.disturbed:
        return (
            f"the case that is measured while the neighbours wait was disturbed: {alone.disturbed}"
        )
    assert plan.canary is not None
    op = plan.canary.case.op
    baselines = {i.name for i in plan.implementations if i.op == op and i.role is Role.BASELINE}
    ratios = {
        name: together.medians[name] / alone.medians[name]
        for name in sorted(alone.medians.keys() & together.medians.keys() & baselines)
    }
    if not ratios:
        return "what its neighbours do to this device was not measured"
    name = max(ratios, key=lambda one: abs(log(ratios[one])))
    over = [ratio for ratio in ratios.values() if max(ratio, 1 / ratio) > 1 + APART]
    if len(over) < min(CONFIRMED_BY, len(ratios)):
        return ""
    busy = "a busy neighbour" if plan.neighbours == 1 else f"{plan.neighbours} busy neighbours"
    return (
        f"{name} took {alone.medians[name]:.4g} ms for the case that all shards measure while the "
        f"neighbours waited, and {together.medians[name]:.4g} ms beside {busy}: over {APART:.0%} "
        f"apart"
    )
