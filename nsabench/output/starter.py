"""A file of an op's first kernel and a matrix for it: right from the start, and slow."""

from __future__ import annotations

from collections.abc import Iterable

from nsabench.errors import UsageError
from nsabench.ops import Op
from nsabench.output.templates import environment


def kernel(op: Op, name: str, ops_file: str = "") -> str:
    """Return a module with an implementation of `op`: its float64 oracle. ops_file: a user's file
    that the op comes from."""
    optional = [f"{argument}=None" for argument in op.optional]
    named_only = ["*", *op.options] if op.options else []
    return (
        environment()
        .get_template("starter.py.j2")
        .render(
            op=op,
            name=name,
            with_ops=f" --ops {ops_file}" if ops_file else "",
            signature=", ".join([*op.arguments, *optional, *named_only]),
            tensors=_dictionary(op.arguments),
            options=_dictionary(op.options),
        )
    )


def matrix(op: Op, name: str) -> str:
    """Return a matrix over the shapes of `nsabench check`, so that both call the same right. Raises
    `UsageError` for an op that brings no shape for a CPU."""
    if not op.check_shapes.get("cpu"):
        raise UsageError(
            f"{op.name} brings no shape to start from",
            "give it `check_shapes`, or write a matrix: docs/how-to/write-a-matrix.md.",
        )
    return environment().get_template("starter.yaml.j2").render(op=op, name=name)


def _dictionary(names: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
