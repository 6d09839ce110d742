"""The doctor's findings for people (rich) and for programs (JSON)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from nsabench.machine.doctor.problem import Problem, Severity
from nsabench.machine.environment.model import Environment, Gpu

_STYLES = {Severity.ERROR: "bold red", Severity.WARNING: "yellow", Severity.NOTE: "cyan"}
_GIB = 1 << 30


def as_json(environment: Environment, problems: list[Problem]) -> dict[str, Any]:
    """Plain data, for `json.dumps`."""
    return {
        "problems": [problem.model_dump(mode="json") for problem in problems],
        "environment": environment.model_dump(mode="json"),
    }


def render(environment: Environment, problems: list[Problem]) -> RenderableType:
    """What the machine is, then what is wrong with it."""
    machine = Table.grid(padding=(0, 2))
    machine.add_column(style="dim", no_wrap=True)
    machine.add_column()
    for label, line in _machine(environment):
        machine.add_row(label, Text(line))
    if not problems:
        return Group(machine, "", Text("Nothing wrong was found.", style="green"))
    findings = Table.grid(padding=(0, 2))
    findings.add_column(no_wrap=True)
    findings.add_column()
    for problem in problems:
        advice = Group(Text(problem.what), Text(f"→ {problem.remedy}", style="dim"))
        findings.add_row(Text(problem.severity, style=_STYLES[problem.severity]), advice)
    return Group(machine, Padding(findings, (1, 0, 0, 0)))


def _machine(environment: Environment) -> Iterable[tuple[str, str]]:
    software, host, container = environment.software, environment.host, environment.container
    driver = environment.driver
    for gpu in environment.gpus:
        in_use = "in use" if gpu.used and len(environment.gpus) > 1 else None
        yield f"GPU {gpu.index}", _line(_gpu(gpu), in_use)
    if not environment.gpus:
        yield "GPU", f"none ({environment.absent.get('gpus', 'not seen')})"
    if driver.version or driver.kernel_module:
        cuda = f"CUDA up to {driver.cuda}" if driver.cuda else None
        yield "driver", _line(driver.version or driver.kernel_module, cuda)
    torch = software.torch.version if software.torch else software.installed("torch")
    triton = software.triton or software.installed("triton")
    built = software.torch.cuda if software.torch else None
    yield (
        "software",
        _line(
            f"torch {torch or 'missing'}" + (f" for CUDA {built}" if built else ""),
            f"triton {triton or 'missing'}",
            *(
                f"{name} {library.version}"
                for name, library in software.libraries.items()
                if name in ("cublas", "cudnn", "nccl", "ptxas")
            ),
            f"Python {software.python}",
        ),
    )
    threads = f"{host.affinity_threads or '?'} of {host.threads or '?'} threads"
    memory = f"{host.ram_bytes / _GIB:.0f} GiB" if host.ram_bytes else None
    yield "host", _line(host.cpu or host.architecture, threads, memory, host.os, host.kernel)
    if container.runtime or container.combo:
        yield "container", _line(container.runtime, container.combo, container.image_digest)
    if environment.sandbox:
        yield "sandbox", environment.sandbox
    source = next((c for c in environment.run.checkouts if c.of == "nsabench" and c.commit), None)
    commit = f"commit {source.commit[:12]}" if source and source.commit else None
    yield (
        "nsabench",
        _line(software.nsabench, commit, "with local changes" if source and source.dirty else None),
    )


def _gpu(gpu: Gpu) -> str:
    capability = (gpu.compute_capability or "").replace(".", "")
    return _line(
        gpu.name or "unnamed",
        f"sm_{capability}" if capability else None,
        f"{gpu.multiprocessors} SMs" if gpu.multiprocessors else None,
        f"{gpu.memory_bytes / _GIB:.0f} GiB" if gpu.memory_bytes else None,
        f"{gpu.power_limit_w:.0f} W" if gpu.power_limit_w else None,
        f"up to {gpu.sm_clock_max_mhz} MHz" if gpu.sm_clock_max_mhz else None,
    )


def _line(*parts: str | None) -> str:
    return " · ".join(part for part in parts if part)
