"""Problems of environment variables that change what is measured."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from nsabench.machine.doctor.problem import Problem, Severity
from nsabench.machine.environment.model import Environment


def _any(value: str) -> bool:
    return bool(value)


def _on(value: str) -> bool:
    return value.strip().lower() not in ("", "0", "false", "off", "no")


def _hides_all(value: str) -> bool:
    return value.strip() in ("", "-1", "NoDevFiles")


@dataclass(frozen=True)
class Switch:
    """A variable, the values that matter, and the consequence as the end of a sentence."""

    name: str
    matters: Callable[[str], bool]
    severity: Severity
    consequence: str


SWITCHES = (
    Switch("CUDA_LAUNCH_BLOCKING", _on, Severity.ERROR, "every launch waits for the device"),
    Switch("CUDA_VISIBLE_DEVICES", _hides_all, Severity.ERROR, "every GPU is hidden"),
    Switch("CUDA_INJECTION64_PATH", _any, Severity.WARNING, "a profiler slows the device down"),
    Switch(
        "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
        _any,
        Severity.WARNING,
        "only a part of the multiprocessors is used",
    ),
    Switch(
        "PYTORCH_NO_CUDA_MEMORY_CACHING", _on, Severity.WARNING, "every allocation is timed too"
    ),
    Switch(
        "NVIDIA_TF32_OVERRIDE", _any, Severity.WARNING, "float32 products change their precision"
    ),
    Switch("TRITON_PTXAS_PATH", _any, Severity.NOTE, "kernels are not assembled by triton's ptxas"),
    Switch("LD_PRELOAD", _any, Severity.NOTE, "libraries may not be the ones installed"),
)


def examine(environment: Environment) -> Iterator[Problem]:
    """Yield a problem for each switch. Without a GPU none of them matters."""
    values = environment.run.variables if environment.gpus else {}
    for switch in SWITCHES:
        if switch.name in values and switch.matters(values[switch.name]):
            yield Problem(
                severity=switch.severity,
                code=f"variable_{switch.name.lower()}",
                what=f"{switch.name} is {values[switch.name]!r}: {switch.consequence}.",
                remedy=f"Run `unset {switch.name}`.",
            )
