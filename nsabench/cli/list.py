"""nsabench list"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from nsabench import ops
from nsabench.cli import _options
from nsabench.cli._say import say
from nsabench.execution import run
from nsabench.model.plan import ImplementationInfo
from nsabench.output import explain
from nsabench.planning import matrix, resolve

Row = dict[str, Any]


@click.command("list")
@click.argument(
    "what", type=click.Choice(["ops", "matrices", "implementations", "packages", "combos"])
)
@_options.kernels
@_options.ops_file
@_options.as_json
def command(what: str, kernels: Path | None, ops_file: Path | None, as_json: bool) -> None:
    """What there is to measure: ops, matrices, implementations, packages that bring them, combos.

    Example: nsabench list implementations --kernels mine.py
    """
    if ops_file is not None:
        ops.load_file(ops_file.absolute())
    listing: dict[str, Callable[[], list[Row]]] = {
        "ops": _ops,
        "matrices": _matrices,
        "implementations": lambda: _implementations(kernels, ops_file),
        "packages": lambda: _packages(kernels, ops_file),
        "combos": _combos,
    }
    rows = listing[what]()
    if as_json:
        say(json.dumps(rows, indent=1))
        return
    texts = [[_text(value) for value in row.values()] for row in rows]
    widths = [max(map(len, column)) for column in zip(*texts, strict=True)]
    for row in texts:
        say("  ".join(f"{t:{w}}" for t, w in zip(row, widths, strict=True)).rstrip())


def _text(value: object) -> str:
    return " ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _ops() -> list[Row]:
    return [
        {
            "op": name,
            "sizes": list(ops.get(name).shape_model.model_fields),
            "directions": [direction.value for direction in ops.get(name).directions],
            "is": explain.explain(name)[0].text.partition("\n")[0].partition(": ")[2],
        }
        for name in ops.names()
    ]


def _matrices() -> list[Row]:
    rows = []
    for name, path in resolve.shipped_matrices().items():
        cases = [case for loaded in matrix.load(path) for case in loaded.cases]
        rows.append(
            {"matrix": name, "cases": len(cases), "ops": sorted({case.op for case in cases})}
        )
    return rows


def _implementations(kernels: Path | None, ops_file: Path | None) -> list[Row]:
    found = run.installed(kernels, ops_file)
    return [
        {
            "op": item.op,
            "implementation": item.name,
            "role": item.role.value,
            "source": str(item.source),
            "library": str(item.origin) or "-",
        }
        for item in sorted(found, key=lambda i: (i.op, i.role, i.name))
    ]


def _packages(kernels: Path | None, ops_file: Path | None) -> list[Row]:
    by_source: dict[str, list[ImplementationInfo]] = {}
    for item in run.installed(kernels, ops_file):
        by_source.setdefault(str(item.source), []).append(item)
    return [
        {
            "package": source,
            "version": run.version_of(items[0].source),
            "implementations": len(items),
            "ops": sorted({item.op for item in items}),
        }
        for source, items in sorted(by_source.items())
    ]


def _combos() -> list[Row]:
    from nsabench.images import combos as known

    return [
        {
            "combo": name,
            "torch": combo.torch,
            "triton": combo.triton,
            "cuda": combo.cuda or "CPU",
        }
        for name, combo in known.checkout().combos().combos.items()
    ]
