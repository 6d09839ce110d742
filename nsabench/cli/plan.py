from dataclasses import asdict

from rich.filesize import decimal

from nsabench import labels
from nsabench.cli import _help, _options
from nsabench.cli._measure import make_plan
from nsabench.cli._options import Measuring
from nsabench.cli._say import say, say_json
from nsabench.machine.environment.collect import memory_of
from nsabench.running import planner


@_help.command("plan")
@_options.measuring(
    *(_options.as_json, _options.only, _options.where, _options.shard),
    *(_options.ops_file, _options.kernels, _options.device, _options.matrices),
)
def command(asked: Measuring) -> None:
    """Show the cases of a plan without measuring.

    For each case it shows the id, the estimated time, and the least memory that it needs. A case
    that does not fit into the memory of this machine or its GPU is refused.

    Example: nsabench plan matrices/selection_rows.yaml
    """
    plan = make_plan(asked)
    planner.refuse_unfitting(plan, memory_of(plan.device))
    takes = planner.estimate(plan)
    if asked.as_json:
        estimates = {case_id: asdict(took) for case_id, took in takes.items()}
        say_json({**plan.model_dump(mode="json"), "estimates": estimates})
        return
    for planned in plan.cases:
        took = takes[planned.id]
        cost = f"{planner.format_duration(took.seconds):>6}  {decimal(took.bytes):>8}"
        say(f"{planned.id}  {cost}  {labels.case_with_op(planned.case)}")
    for item in plan.implementations:
        say(f"  {item.role:9}  {item.op}  {item.name}  (from {item.source})")
    total = planner.format_duration(sum(took.seconds for took in takes.values()))
    records = sum(len(c.implementations) for c in plan.cases)
    say(f"{len(plan.cases)} cases, {records} records, about {total} and as much again to compile")
