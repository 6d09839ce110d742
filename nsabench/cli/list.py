from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import click

from nsabench import ops
from nsabench.cli import _help, _options
from nsabench.cli._say import say_columns, say_json
from nsabench.model.plan import ImplementationInfo
from nsabench.output import explain
from nsabench.planning import matrix, resolve
from nsabench.running import planner

Row = dict[str, Any]


@_help.command("list")
@click.argument("what", type=click.Choice(["ops", "matrices", "implementations"]))
@_options.kernels
@_options.loaded_ops
@_options.as_json
def command(what: str, kernels: Path | None, ops_file: Path | None, as_json: bool) -> None:
    """List ops, matrices or implementations.

    Example: nsabench list implementations --kernels mine.py
    """
    if what == "ops":
        rows = list(_ops())
    elif what == "matrices":
        rows = list(_matrices())
    else:
        rows = list(_implementations(planner.installed(kernels, ops_file)))
    if as_json:
        say_json(rows)
    else:
        say_columns([list(row.values()) for row in rows])


def _ops() -> Iterator[Row]:
    for name in ops.names():
        op = ops.get(name)
        yield {
            "op": name,
            "sizes": list(op.shape_model.model_fields),
            "directions": [direction.value for direction in op.directions],
            "is": explain.explain(name)[0].text.partition("\n")[0].partition(": ")[2],
        }


def _matrices() -> Iterator[Row]:
    for name, path in resolve.shipped_matrices().items():
        cases = [case for loaded in matrix.load(path) for case in loaded.cases]
        yield {"matrix": name, "cases": len(cases), "ops": sorted({case.op for case in cases})}


def _implementations(found: Sequence[ImplementationInfo]) -> Iterator[Row]:
    for item in sorted(found, key=lambda i: (i.op, i.role, i.name)):
        yield {
            "op": item.op,
            "implementation": item.name,
            "role": item.role,
            "source": str(item.source),
            "library": str(item.origin) or "-",
        }
