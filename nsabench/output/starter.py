"""A file of an op's first kernel and a matrix for it: right from the start, and slow."""

from __future__ import annotations

from nsabench.errors import UsageError
from nsabench.ops import Op


def kernel(op: Op, name: str, ops_file: str = "") -> str:
    """A module with an implementation of `op` that is called `name` and computes what is right: the
    op's float64 oracle. ops_file: where the op comes from, if from a user's file."""
    tensors = "".join(f'"{a}": {a}, ' for a in op.arguments).rstrip(", ")
    options = "".join(f'"{o}": {o}, ' for o in op.options).rstrip(", ")
    optional_names = [f"{a}=None" for a in op.optional]
    named_only = ["*", *op.options] if op.options else []
    signature = ", ".join([*op.arguments, *optional_names, *named_only])
    optional = "".join(
        f'    if {a} is not None:\n        tensors["{a}"] = {a}\n' for a in op.optional
    )
    with_ops = f" --ops {ops_file}" if ops_file else ""
    return f'''\
# A kernel of your own for {op.name}. Is it right, and how fast?
#     nsabench check {name}.py{with_ops}
# From which length on is it worth using?
#     nsabench all {name}.yaml --kernels {name}.py{with_ops} --only {name}
from nsabench import implementation, ops
from nsabench.ops import Inputs


# A Triton kernel says devices=("cuda", "interpreter").
@implementation(op="{op.name}", name="{name}", devices=("cuda", "cpu"))
def {name}({signature}):
    # Right and slow: the float64 oracle. Put your kernel in its place.
    tensors = {{{tensors}}}
{optional}    out = ops.get("{op.name}").oracle(Inputs(tensors, {{{options}}}))
    return out.to({op.arguments[0]}.dtype)
'''


def matrix(op: Op, name: str) -> str:
    """A matrix over the shapes that the op brings for a CPU, with one for a GPU to put there. They
    are those of `nsabench check`: what it calls wrong is not to be right here.

    Raises `UsageError` for an op that brings none.
    """
    if not op.check_shapes.get("cpu"):
        raise UsageError(
            f"{op.name} brings no shape to start from",
            "give it `check_shapes`, or write a matrix: docs/how-to/write-a-matrix.md.",
        )
    first, *others = op.check_shapes["cpu"]
    lines = [f"# What to measure `{name}` on. Every list spans cases.", f"op: {op.name}", "axes:"]
    lines += [f"  {size}" for size in _axes(first)]
    for shape in op.check_shapes.get("cuda", ())[:1]:
        lines += ["# On a GPU, rather:", *(f"#  {size}" for size in _axes(shape))]
    for shape in others:
        lines += ["---", "# Sizes that no block divides, where kernels forget the tail."]
        lines += [f"op: {op.name}", "axes:", *(f"  {size}" for size in _axes(shape))]
    return "\n".join(lines) + "\n"


def _axes(shape: str) -> list[str]:
    return [": ".join(size.strip().split("=")) for size in shape.split(",")]
