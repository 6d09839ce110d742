from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from nsabench import labels
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.model.vocabulary import Direction
from nsabench.ops import Op
from nsabench.text import shown

if TYPE_CHECKING:
    import jinja2


def environment(**options: Any) -> jinja2.Environment:
    import jinja2  # most commands need no template

    return jinja2.Environment(
        loader=jinja2.PackageLoader("nsabench.output.report"),
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        **options,
    )


def first_kernel(op: Op, name: str, ops_file: str = "") -> str:
    """Return a module that implements `op` by its oracle. ops_file: the user's file of the op."""
    optional = [f"{argument}=None" for argument in op.optional]
    named_only = ["*", *op.options] if op.options else []
    template = environment().get_template("starter.py.j2")
    return template.render(
        op=op,
        name=name,
        with_ops=f" --ops {ops_file}" if ops_file else "",
        signature=", ".join([*op.arguments, *optional, *named_only]),
        tensors=_format_dictionary(op.arguments),
        options=_format_dictionary(op.options),
    )


def first_matrix(op: Op, name: str) -> str:
    """Return a matrix over the CPU shapes of `nsabench check`. Raises `UsageError` without any."""
    if not op.check_shapes.get("cpu"):
        raise UsageError(
            f"{op.name} has no shape to start from",
            "give it `check_shapes`, or write a matrix: docs/how-to/write-a-matrix.md.",
        )
    return environment().get_template("starter.yaml.j2").render(op=op, name=name)


def reproduction(plan: Plan, case: Case, info: ImplementationInfo) -> str:
    """Return a script that calls one implementation on the inputs in a file beside it."""
    templates = environment()
    templates.filters["repr"] = repr
    # A foreign name must not end the line and continue as code.
    head = f"# {info.name} on {labels.case_with_op(case)}, as the run {plan.run_id} measured it."
    return templates.get_template("alone.py.j2").render(
        head=shown(head),
        is_file=info.source.is_file,
        kernels=plan.kernels,
        op=info.op,
        name=info.name,
        backward=case.direction is Direction.BACKWARD,
    )


def _format_dictionary(names: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
