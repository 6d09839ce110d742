from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nsabench import labels
from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo, Plan
from nsabench.ops import Op
from nsabench.text import shown

if TYPE_CHECKING:
    import jinja2

DEVICES = {
    "triton": '"cuda", "interpreter"',
    "cuda": '"cuda",',
    "oracle": '"cuda", "cpu"',
}
HELPERS = {name: ["nsa"] for name in ("decode_step", "nsa_attention", "nsa_without_window")}


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


def first_kernel(op: Op, name: str, ops_file: str = "", *, cuda: bool = False) -> str:
    """Return a module with a kernel that is right. `ops_file` is the user's file of the op.

    The kernel is in Triton or, if `cuda`, in CUDA C++. If the op is the user's or nsabench has no
    kernel to start from, it calls the oracle instead; with `cuda`, `UsageError` is raised.
    """
    templates = environment()
    body = f"starters/{op.name}.j2"
    language = "cuda" if cuda else "triton"
    if f"{op.name}.j2" not in {Path(t).name for t in templates.list_templates()} or ops_file:
        if cuda:
            raise UsageError(f"{op.name} has only its oracle to start from", "leave --cuda out.")
        body, language = "starters/_oracle.j2", "oracle"
    optional = [f"{argument}=None" for argument in op.optional]
    named_only = ["*", *op.options] if op.options else []
    about = inspect.getdoc(sys.modules[type(op).__module__]) or ""
    return templates.get_template("starter.py.j2").render(
        op=op,
        name=name,
        about=about.splitlines(),
        body=body,
        language=language,
        devices=DEVICES[language],
        helpers=HELPERS.get(op.name, ["places"] if "cu_seqlens" in op.optional else []),
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
    """Return a script that calls one implementation on the inputs in a file next to it."""
    templates = environment()
    templates.filters["repr"] = repr
    # `shown` escapes line ends: in a name, the text after a line end would be code.
    head = f"# {info.name} on {labels.case_with_op(case)}, as the run {plan.run_id} measured it."
    return templates.get_template("alone.py.j2").render(
        head=shown(head),
        is_file=info.source.is_file,
        kernels=plan.kernels,
        op=info.op,
        name=info.name,
        backward=case.direction.differentiates,
    )


def _format_dictionary(names: Iterable[str]) -> str:
    return "{" + ", ".join(f'"{name}": {name}' for name in names) + "}"
