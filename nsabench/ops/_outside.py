"""Ops that do not ship: from entry points of the group `nsabench.ops`, and from the user's file.

Either holds an `Op` under the name `OP`. Both are foreign code that the supervisor imports, since
it needs sizes, work and labels: an entry point when its op is first asked for, a file when the user
names it. Neither may import torch, which the supervisor does without.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from nsabench import sources
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Direction
from nsabench.ops._contract import Op, Shape, Work

USER_MODULE = "nsabench_user_ops"
FORM = "give it `OP = MyOp()`, with a class MyOp(Op) of `from nsabench.ops import Op`."

from_files: dict[str, tuple[Op, str]] = {}  # by name, with the sha256 of the file


@cache
def installed() -> dict[str, EntryPoint]:
    """The entry points of ops, by name. Imports none of them."""
    points = sources.by_distribution(sources.OPS).values()
    return {point.name: point for group in points for point in group}


@cache
def of_entry_point(name: str) -> Op:
    """Raises `UsageError` when it cannot be imported or is no op of that name."""
    point = installed()[name]
    what = f"entry point {name!r} of {point.dist.name if point.dist else point.value}"
    value = sources.imported(point.load, what)
    op = _checked(
        value.OP if isinstance(value, ModuleType) and hasattr(value, "OP") else value, what
    )
    if op.name != name:
        raise UsageError(f"{what} holds the op {op.name!r}", "give the entry point that name.")
    return op


def load_file(path: Path, shipped: tuple[str, ...], expected_sha256: str | None = None) -> Op:
    """The op of the user's file, which can be named from now on.

    expected_sha256: what the file must be; None: whatever it is. Raises `UsageError` when the file
    is another, cannot be imported, imports torch, or holds no op, or one whose name is taken.
    """
    known = expected_sha256 is not None
    content = sources.read(path, sources.PUT_BACK if known else "give --ops a file.")
    digest = sources.sha256(content)
    if known and expected_sha256 != digest:
        raise sources.changed(path)
    for op, of_file in from_files.values():
        if of_file == digest:  # like a module, a file is executed once a process
            return op
    had_torch = "torch" in sys.modules
    module = sources.execute(path, content, USER_MODULE)
    if "torch" in sys.modules and not had_torch:
        raise UsageError(
            f"{path} imports torch, which who plans and reports does without",
            "import it inside `draw`, `oracle` and what else makes tensors.",
        )
    op = _checked(getattr(module, "OP", None), str(path))
    if op.name in shipped:
        raise UsageError(f"{path} holds an op {op.name!r}, and one ships", "give it another name.")
    from_files[op.name] = op, digest
    return op


def answer_of(question: Callable[[], Work], op: Op, method: str) -> Work:
    """The answer of an op that does not ship. Raises `UsageError` when it has none."""
    work = sources.imported(question, f"{method} of the op {op.name!r}", "does not answer")
    if not isinstance(work, Work):
        raise UsageError(
            f"{method} of the op {op.name!r} returned a {type(work).__name__}",
            "return Work(bytes_min, flops), both whole numbers.",
        )
    return work


def _checked(value: Any, what: str) -> Op:
    if not isinstance(value, Op):
        raise UsageError(f"{what} holds no op under the name OP", FORM)
    wrong = _misfit(value)
    if wrong:
        raise UsageError(f"the op of {what} {wrong}", "see docs/how-to/op-of-your-own.md.")
    return value


def _misfit(op: Op) -> str:
    """What an op lacks that everybody relies on; or ""."""
    name = getattr(op, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        return f"has the name {name!r}: up to 64 small letters, digits and '_'"
    for several in ("arguments", "distributions", "directions"):
        if not isinstance(getattr(op, several, None), tuple) or not getattr(op, several):
            return f"names no {several}, a tuple of at least one"
    model = getattr(op, "shape_model", None)
    if not (isinstance(model, type) and issubclass(model, Shape)):
        return "has no shape_model, a subclass of Shape"
    for size, field in model.model_fields.items():
        if int not in (field.annotation, *get_args(field.annotation)):
            return f"has a size {size!r} that is no whole number: make it a Size"
    if op.length_axis not in model.model_fields:
        return f"has no size {op.length_axis!r}, its length_axis"
    if Direction.BACKWARD in op.directions:
        if not op.differentiable or not set(op.differentiable) <= set(op.arguments):
            return "has a backward and does not say by which arguments: differentiable"
        for method in ("gradients", "differentiable_elements"):
            if getattr(type(op), method) is getattr(Op, method):
                return f"has a backward and no {method}"
    return ""
