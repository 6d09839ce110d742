"""Where did it run, and how is it repeated?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from nsabench.machine.environment.model import Environment
from nsabench.model.vocabulary import PassName
from nsabench.output.report.facts import Facts, quoted

ORDER = 60
TITLE = "Environment"
QUESTION = "Where did it run, and how do I repeat it?"
_GIB = 1 << 30


def context(facts: Facts) -> dict[str, Any]:
    environment = facts.environment
    return {
        "machine": list(machine(environment)) if environment else [],
        "environment": environment,
        "absent": sorted(environment.absent.items()) if environment else [],
        "conditions": _conditions(facts),
        "commands": commands(facts),
    }


def machine(environment: Environment) -> Iterator[tuple[str, str]]:
    """What decides a number, a line each. What could not be read is left to `absent`."""
    gpu, host, software = environment.gpu, environment.host, environment.software
    if gpu is not None:
        yield (
            "GPU",
            _line(
                gpu.name,
                environment.sm,
                f"{gpu.multiprocessors} SMs" if gpu.multiprocessors else None,
                f"{gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes else None,
                f"L2 {gpu.l2_bytes / 2**20:.0f} MiB" if gpu.l2_bytes else None,
            ),
        )
        yield (
            "GPU state",
            _line(
                f"power limit {gpu.power_limit_w:.0f} W" if gpu.power_limit_w else None,
                f"SM clock {gpu.sm_clock_mhz} of {gpu.sm_clock_max_mhz} MHz"
                if gpu.sm_clock_mhz
                else None,
                f"{gpu.temperature_c} °C" if gpu.temperature_c is not None else None,
                f"{gpu.competing_processes} other processes"
                if gpu.competing_processes is not None
                else None,
            ),
        )
        yield "driver", _line(environment.driver.version, f"CUDA up to {environment.driver.cuda}")
    torch = software.torch
    yield (
        "software",
        _line(
            f"torch {torch.version}" if torch else None,
            f"built for CUDA {torch.cuda}" if torch and torch.cuda else None,
            f"triton {software.triton}" if software.triton else None,
            f"numpy {software.numpy}" if software.numpy else None,
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
            f"{host.ram_bytes / _GIB:.0f} GiB" if host.ram_bytes else None,
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
        yield (
            f"{checkout.of} source",
            _line(checkout.commit, "with local changes" if checkout.dirty else None),
        )
    yield "nsabench", software.nsabench


def commands(facts: Facts) -> list[tuple[str, str]]:
    """What to type to do it again or to check it."""
    folder = quoted(facts.folder.path.name or ".")
    if not facts.plan.shards:
        lines = [("the run, again", facts.command)]
    else:  # its environment is that of the first
        known = facts.environment is not None and facts.environment.run.command
        lines = [("its first shard, again", facts.command)] if known else []
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


def _conditions(facts: Facts) -> list[tuple[str, str]]:
    """What the device's sensors said during the run."""
    seen = [c for e in facts.contents.of(PassName.FIRST_LOOK) for c in e.conditions.values()]
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


def _line(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)
