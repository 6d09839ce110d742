"""nsabench plan"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

import click

from nsabench.assessment import labels
from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.execution import estimate, run
from nsabench.machine.memory import memory_of
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.planning.narrow import Narrowed


@click.command("plan")
@_options.matrices
@_options.device
@_options.kernels
@_options.ops_file
@_options.shard
@_options.where
@_options.only
@_options.as_json
def command(
    matrices: tuple[str, ...],
    device: str,
    kernels: Path | None,
    ops_file: Path | None,
    shard: str,
    where: tuple[str, ...],
    only: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the resolved cases and their ids, about how long each takes and how much memory at
    least, without running them.

    A case that cannot fit the memory of this machine, or of its GPU, is refused.

    Example: nsabench plan matrices/selection_rows.yaml
    """
    plan = run.make_plan(
        matrices,
        run.choose_device(device),
        kernels,
        shard,
        ops_file,
        narrowed=Narrowed(where, only),
    )
    estimate.refuse_unfitting(plan, memory_of(plan.device))
    takes = estimate.of_plan(plan)
    if as_json:
        estimates = {case_id: asdict(one) for case_id, one in takes.items()}
        say(json.dumps({**plan.model_dump(mode="json"), "estimates": estimates}, indent=1))
        return
    for planned in plan.cases:
        one = takes[planned.id]
        cost = f"{estimate.duration(one.seconds):>6}  {estimate.gigabytes(one.bytes):>8}"
        say(f"{planned.id}  {cost}  {labels.of_case(planned.case)}")
    for item in plan.implementations:
        say(f"  {item.role:9}  {item.op}  {item.name}  (from {item.source})")
        for line in _alongside(plan, item):
            say(f"             {line}")
    total = estimate.duration(sum(one.seconds for one in takes.values()))
    records = sum(len(c.implementations) for c in plan.cases)
    say(f"{len(plan.cases)} cases, {records} records, about {total} and as much again to compile")


def _alongside(plan: Plan, item: ImplementationInfo) -> Iterator[str]:
    """Where and why a baseline runs that the matrix leaves out."""
    where = [c for c in plan.cases if c.case.op == item.op and item.name in c.alongside]
    if where:
        ran = {name for planned in where for name in planned.implementations}
        wrappers = [
            i.name
            for i in plan.implementations
            if i.op == item.op and i.wraps == item.name and i.name in ran
        ]
        yield (
            f"runs along in {len(where)} of {len(plan.cases)} cases, for what wraps it "
            f"({', '.join(wrappers)}); candidates are not held against it"
        )
