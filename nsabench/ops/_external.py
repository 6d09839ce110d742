"""Load ops that do not ship, from entry points of the group `nsabench.ops` and the user's file.

The process that plans and reports imports this foreign code and has no torch, so the code may
import torch only inside methods that make tensors.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, get_args

from nsabench import sources
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Direction
from nsabench.ops._op import MOST, Op, Shape, Work

T = TypeVar("T")

USER_MODULE = "nsabench_user_ops"
KINDS: dict[str, type] = {
    **dict.fromkeys(("arguments", "optional", "options", "distributions", "differentiable"), str),
    "directions": Direction,
}
FORM = "give it `OP = MyOp()`, with a class MyOp(Op) of `from nsabench.ops import Op`."

from_files: dict[str, tuple[Op, str]] = {}  # by name, with the sha256 of the file


@cache
def installed() -> dict[str, list[EntryPoint]]:
    points: dict[str, list[EntryPoint]] = {}
    for group in sources.by_distribution(sources.OPS).values():
        for point in group:
            points.setdefault(point.name, []).append(point)
    return points


def owners(name: str) -> str:
    return " and ".join(p.dist.name if p.dist else p.value for p in installed()[name])


@cache
def import_entry_point(name: str) -> Op:
    """Import the op of an entry point. Raises `UsageError` unless one valid op has that name."""
    if len(installed()[name]) > 1:
        raise UsageError(f"{owners(name)} each have an op {name!r}", "uninstall all but one.")
    [point] = installed()[name]
    what = f"entry point {name!r} of {owners(name)}"
    value = _without_torch(lambda: sources.imported(point.load, what), what)
    op = _check_op(getattr(value, "OP", value) if isinstance(value, ModuleType) else value, what)
    if op.name != name:
        raise UsageError(f"{what} holds the op {op.name!r}", "give the entry point that name.")
    return op


def load_file(path: Path, owned: Mapping[str, str], expected_sha256: str | None = None) -> Op:
    """Load the op of the user's file. Raises `UsageError` if the file was changed or has no valid
    op, or if the op's name is in `owned`, which says where each other op comes from."""
    known = expected_sha256 is not None
    content = sources.read(path, sources.PUT_BACK if known else "give --ops a file.")
    digest = sources.sha256(content)
    if known and expected_sha256 != digest:
        raise sources.changed(path)
    for op, of_file in from_files.values():
        if of_file == digest:  # like a module, a file is executed once in a process
            return op
    module = _without_torch(lambda: sources.execute(path, content, USER_MODULE), str(path))
    op = _check_op(getattr(module, "OP", None), str(path))
    if op.name in owned:
        raise UsageError(
            f"{path} holds an op {op.name!r}, and {owned[op.name]}", "give it another name."
        )
    from_files[op.name] = op, digest
    return op


def _without_torch(load: Callable[[], T], what: str) -> T:
    had_torch = "torch" in sys.modules
    value = load()
    if "torch" in sys.modules and not had_torch:
        raise UsageError(
            f"{what} imports torch, which the process that plans and reports does not have",
            "import it inside `draw`, `oracle` and other methods that make tensors.",
        )
    return value


def ask_method(question: Callable[[], T], op: Op, method: str, kind: type[T]) -> T:
    """Return the answer of a method. Raises `UsageError` if it fails or answers in another type."""
    what = f"{method} of the op {op.name!r}"
    answer = sources.imported(question, what, "does not answer", "correct that method of the op.")
    if type(answer) is not kind or (isinstance(answer, int) and not 0 < answer < MOST):
        shown = answer if type(answer) is int else f"a {type(answer).__name__}"
        asked = "Work(bytes_min, flops)" if kind is Work else "a whole number of at least 1"
        raise UsageError(f"{what} returned {shown}", f"return {asked}.")
    return answer


def _check_op(value: Any, what: str) -> Op:
    if not isinstance(value, Op):
        raise UsageError(f"{what} holds no op under the name OP", FORM)
    remedy = "see docs/how-to/op-of-your-own.md."
    wrong = sources.imported(
        lambda: _find_misfit(value), f"the op of {what}", "cannot be read", remedy
    )
    if wrong:
        raise UsageError(f"the op of {what} {wrong}", remedy)
    return value


def _find_misfit(op: Op) -> str:
    name = getattr(op, "name", None)
    if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9_]{0,63}", name):
        return f"has the name {name!r}: give a letter and up to 63 of a-z, 0-9 and '_'"
    for several, kind in KINDS.items():
        values = getattr(op, several, None)
        if not isinstance(values, tuple) or not all(isinstance(value, kind) for value in values):
            return f"has {several} that are not a tuple of {kind.__name__}"
    for several in ("arguments", "distributions", "directions"):
        if not getattr(op, several):
            return f"names no {several}, a tuple of at least one"
    model = getattr(op, "shape_model", None)
    if not (isinstance(model, type) and issubclass(model, Shape)):
        return "has no shape_model, a subclass of Shape"
    for size, field in model.model_fields.items():
        if int not in (field.annotation, *get_args(field.annotation)):
            return f"has a size {size!r} that is not a whole number: make it a Size"
    if op.length_axis not in model.model_fields:
        return f"has no size {op.length_axis!r}, its length_axis"
    if Direction.BACKWARD in op.directions:
        if not op.differentiable or not set(op.differentiable) <= set(op.arguments):
            return "has a backward, but `differentiable` is empty, or names a non-argument"
        for method in ("gradients", "differentiable_elements"):
            if getattr(type(op), method) is getattr(Op, method):
                return f"has a backward and no {method}"
    return ""
