"""Make a plan for this machine from what is installed, and estimate its time and memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from rich.filesize import decimal

from nsabench import labels, ops, registry
from nsabench.errors import EnvironmentRefused, UsageError
from nsabench.model.plan import WHOLE, Device, ImplementationInfo, Plan, PlannedCase
from nsabench.model.source import Source
from nsabench.model.vocabulary import MARGIN, Role
from nsabench.planning import resolve
from nsabench.planning.narrow import ALL, Narrowed
from nsabench.planning.shards import estimate_s
from nsabench.running.clients import WorkerClient
from nsabench.sources import digest_of
from nsabench.verdicts import tables


def make_plan(
    matrices: Sequence[str],
    device: Device,
    kernels: Path | None,
    shard: str = WHOLE,
    ops_file: Path | None = None,
    margin: float = MARGIN,
    *,
    sandboxed: bool = True,
    brief: bool = False,
    narrowed: Narrowed = ALL,
) -> Plan:
    """Plan matrices with what is installed. Raises `UsageError` if a file or import is broken."""
    kernels, ops_file = _absolute(kernels), _absolute(ops_file)
    if ops_file is not None:
        ops.load_file(ops_file)
    loaded = resolve.load_matrices(matrices or resolve.default_matrices(device))
    for name in {case.op for matrix in loaded for case in matrix.cases}:
        tables.refuse_sizes(ops.get(name))
    sources = registry.sources(kernels, ops_file)
    implementations = discover(device, kernels, ops_file, sources, sandboxed=sandboxed)
    plan = resolve.resolve(
        loaded,
        implementations,
        device=device,
        kernels=kernels,
        ops_file=ops_file,
        sources=sources,
        shard=shard,
        margin=margin,
        sandboxed=sandboxed,
        brief=brief,
        narrowed=narrowed,
    )
    ops.refuse_other(plan)  # the file may have changed since its op was loaded
    return plan


def installed(
    kernels: Path | None = None, ops_file: Path | None = None
) -> list[ImplementationInfo]:
    kernels, ops_file = _absolute(kernels), _absolute(ops_file)
    sources = registry.sources(kernels, ops_file)
    return discover("cpu", kernels, ops_file, sources, sandboxed=True)


def _absolute(file: Path | None) -> Path | None:
    return file.absolute() if file is not None else None  # a run may be resumed in another folder


def discover(
    device: Device,
    kernels: Path | None,
    ops_file: Path | None,
    sources: Mapping[str, str],
    *,
    sandboxed: bool,
) -> list[ImplementationInfo]:
    """Return all implementations. Raises `UsageError` if an import or `join_file` fails."""

    def list_with(file: Path | None, imported: Mapping[str, str]) -> list[ImplementationInfo]:
        with closing(
            WorkerClient(device, file, sources=imported, ops_file=ops_file, sandboxed=sandboxed)
        ) as worker:
            return worker.discover()

    installed = list_with(None, without_file(kernels, sources))
    if kernels is None:
        return installed
    return join_file(kernels, sources, installed, list_with(kernels, sources))


def without_file(kernels: Path | None, sources: Mapping[str, str]) -> dict[str, str]:
    own = Source.from_digest(kernels, digest_of(kernels, sources)) if kernels is not None else None
    return {source: digest for source, digest in sources.items() if source != own}


def join_file(
    kernels: Path,
    sources: Mapping[str, str],
    installed: Sequence[ImplementationInfo],
    loaded: Iterable[ImplementationInfo],
) -> list[ImplementationInfo]:
    """Return `loaded`. Raises `UsageError` if the file altered installed implementations."""
    before = {(info.op, info.name): info for info in installed}
    after = {(info.op, info.name): info for info in loaded}
    own = Source.from_digest(kernels, digest_of(kernels, sources))
    for op, name in before | after:
        info = after.get((op, name))
        # The controls of an op wrap its first baseline, which may come from the file.
        is_new = info is not None and (info.source == own or info.role is Role.CONTROL)
        if info != before.get((op, name), info if is_new else None):
            raise UsageError(
                f"{kernels} alters what is installed: {name} of {op}",
                "let the file only add implementations, under names that no other has.",
            )
    return list(after.values())


@dataclass(frozen=True)
class Estimate:
    seconds: float
    bytes: int  # a lower bound: two sets of inputs are in memory at once


def estimate(plan: Plan) -> dict[str, Estimate]:
    return {planned.id: estimate_case(planned, plan.device) for planned in plan.cases}


def estimate_case(planned: PlannedCase, device: Device) -> Estimate:
    case = planned.case
    return Estimate(
        min(estimate_s(planned, device), case.timeout_s * len(planned.implementations)),
        2 * ops.work(case).bytes_min,
    )


def refuse_unfitting(plan: Plan, memory: int | None) -> None:
    """Raise `UsageError` for cases that need more than `memory` bytes, if that is known."""
    if memory is None:
        return
    needs = {case_id: estimate.bytes for case_id, estimate in estimate(plan).items()}
    over = [planned for planned in plan.cases if needs[planned.id] > memory]
    if over:
        worst = max(over, key=lambda planned: needs[planned.id])
        more = f" (the largest of {len(over)} such cases)" if len(over) > 1 else ""
        raise UsageError(
            f"{labels.case_with_id(worst.case)} needs at least {decimal(needs[worst.id])}{more}, "
            f"but the device has {decimal(memory)}",
            "leave them out with --where, or make them smaller.",
        )


def refuse_long(plan: Plan) -> None:
    """Raise `EnvironmentRefused` if a CPU, which decides nothing, needs over half an hour."""
    seconds = sum(took.seconds for took in estimate(plan).values())
    if seconds > 30 * 60:
        raise EnvironmentRefused(
            f"there is no GPU here, and a CPU takes about {format_duration(seconds)} for this plan",
            "measure on a machine with a GPU, or only check outputs here with `--device cpu`.",
        )


def format_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
