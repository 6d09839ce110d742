"""nsabench plan"""

from __future__ import annotations

import json
from pathlib import Path

import click

from nsabench.assessment import labels
from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.execution import run


@click.command("plan")
@_options.matrices
@_options.device
@_options.kernels
@_options.ops_file
@_options.shard
@_options.as_json
def command(
    matrices: tuple[str, ...],
    device: str,
    kernels: Path | None,
    ops_file: Path | None,
    shard: str,
    as_json: bool,
) -> None:
    """Print the resolved cases and their ids, without running them.

    Example: nsabench plan matrices/selection_rows.yaml
    """
    plan = run.make_plan(matrices, run.choose_device(device), kernels, shard, ops_file)
    if as_json:
        say(json.dumps(plan.model_dump(mode="json"), indent=1))
        return
    for planned in plan.cases:
        say(f"{planned.id}  {labels.of_case(planned.case)}")
    for item in plan.implementations:
        say(f"  {item.role:9}  {item.op}  {item.name}  (from {item.source})")
    say(f"{len(plan.cases)} cases, {sum(len(c.implementations) for c in plan.cases)} records")
