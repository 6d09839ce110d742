"""Where a run was made, and how it is repeated."""

from __future__ import annotations

import shlex
from typing import Any

from nsabench.machine.environment.model import Environment
from nsabench.machine.environment.summary import summarise
from nsabench.model.vocabulary import MARGIN
from nsabench.output.report.facts import Facts


def context(facts: Facts) -> dict[str, Any]:
    lines = machine(facts.environment)
    return {"machine": lines, "conditions": _conditions(facts), "commands": commands(facts)}


def machine(environment: Environment | None) -> list[tuple[str, str]]:
    """Return what decides a number, a line each."""
    if environment is None:
        return []
    return list(summarise(environment, [environment.gpu] if environment.gpu else []))


def _conditions(facts: Facts) -> list[tuple[str, str]]:
    seen = [c for state in facts.main_states for c in state.conditions.values()]
    clocks = [x for c in seen for x in (c.sm_clock_mhz_min, c.sm_clock_mhz_max) if x is not None]
    hottest = max((c.temperature_c_max for c in seen if c.temperature_c_max), default=None)
    power = max((c.power_w_max for c in seen if c.power_w_max), default=None)
    reasons = sorted({r for c in seen for r in c.clock_event_reasons})
    return [
        ("SM clock", f"{min(clocks)} to {max(clocks)} MHz" if clocks else "not readable"),
        ("hottest", f"{hottest} °C" if hottest else "not readable"),
        ("most power", f"{power:.0f} W" if power else "not readable"),
        ("clock events", ", ".join(reasons) or "none seen"),
    ]


def commands(facts: Facts) -> list[tuple[str, str]]:
    folder = shlex.quote(facts.folder.path.name or ".")
    if not facts.plan.shards:
        lines = [("the run, again", command(facts))]
    else:  # the environment of a merged run is the one of its first shard
        known = facts.environment is not None and facts.environment.run.command
        lines = [("its first shard, again", command(facts))] if known else []
        lines.append(("all of them as one", "nsabench merge SHARD… --out again"))
    container = facts.environment.container if facts.environment else None
    if container is not None and container.image_digest:
        lines.append(("the image", f"docker pull {container.image_digest}"))
    return [
        *lines,
        ("its checks, again", f"nsabench audit {folder}"),
        ("this report, again", f"nsabench report {folder} --out again"),
        ("its signature", f"nsabench verify {folder}"),
    ]


def command(facts: Facts) -> str:
    """Return how the run was, or would be, started."""
    if facts.environment is not None and facts.environment.run.command:
        return shlex.join(facts.environment.run.command)
    plan = facts.plan
    words = ["nsabench", "all", *dict.fromkeys(m.name for m in plan.matrices)]
    words += ["--device", plan.device]
    words += ["--kernels", plan.kernels] if plan.kernels else []
    words += ["--ops", plan.ops] if plan.ops else []
    words += ["--shard", plan.shard] if plan.shard != "1/1" else []
    words += ["--margin", f"{plan.margin:g}"] if plan.margin != MARGIN else []
    return shlex.join(words)
