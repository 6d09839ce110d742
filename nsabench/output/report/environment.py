"""Where a run was made, and how it is repeated."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from nsabench.machine.environment.model import Environment
from nsabench.model.vocabulary import MARGIN
from nsabench.output.report.facts import Facts

_GIB = 1 << 30


def context(facts: Facts) -> dict[str, Any]:
    lines = list(machine(facts.environment))
    return {"machine": lines, "conditions": _conditions(facts), "commands": commands(facts)}


def machine(environment: Environment | None) -> Iterator[tuple[str, str]]:
    """Yield what decides a number, a line each. `absent` has what could not be read."""
    if environment is None:
        return
    gpu, host, software = environment.gpu, environment.host, environment.software
    if gpu is not None:
        clock = gpu.sm_clock_mhz
        others = gpu.competing_processes
        yield (
            "GPU",
            _line(
                gpu.name,
                environment.sm,
                gpu.multiprocessors and f"{gpu.multiprocessors} SMs",
                gpu.memory_bytes and f"{gpu.memory_bytes / _GIB:.0f} GiB",
                gpu.l2_bytes and f"L2 {gpu.l2_bytes / 2**20:.0f} MiB",
            ),
        )
        yield (
            "GPU state",
            _line(
                gpu.power_limit_w and f"power limit {gpu.power_limit_w:.0f} W",
                clock and f"SM clock {clock} of {gpu.sm_clock_max_mhz} MHz",
                f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else None,
                f"{others} other processes" if others is not None else None,
            ),
        )
        yield "driver", _line(environment.driver.version, f"CUDA up to {environment.driver.cuda}")
    torch = software.torch
    yield (
        "software",
        _line(
            torch and f"torch {torch.version}",
            torch and torch.cuda and f"built for CUDA {torch.cuda}",
            software.triton and f"triton {software.triton}",
            software.numpy and f"numpy {software.numpy}",
            f"Python {software.python}",
        ),
    )
    libraries = [f"{n} {v.version}" for n, v in software.libraries.items() if v.version]
    if libraries:
        yield "libraries", _line(*libraries)
    yield (
        "host",
        _line(
            host.cpu or host.architecture,
            f"{host.affinity_threads or '?'} of {host.threads or '?'} threads",
            host.ram_bytes and f"{host.ram_bytes / _GIB:.0f} GiB",
            host.os,
            host.kernel,
        ),
    )
    container = environment.container
    if container.runtime or container.combo:
        yield "image", _line(container.runtime, container.combo, container.image_digest)
    if environment.sandbox:
        yield "sandbox", environment.sandbox
    for checkout in environment.run.checkouts:
        altered = "with local changes" if checkout.dirty else None
        yield f"{checkout.of} source", _line(checkout.commit, altered)
    yield "nsabench", software.nsabench


def _line(*parts: object) -> str:
    return " · ".join(str(part) for part in parts if part)


def _conditions(facts: Facts) -> list[tuple[str, str]]:
    """What the device's sensors said during the run."""
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
    """Return what to type to repeat the run or to check it."""
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
