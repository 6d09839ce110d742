"""Find the ops. Each public module of this folder holds an op under the name `OP`.

Other ops come from entry points of the group `nsabench.ops` and from the file of `--ops`.
"""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Hashable, Mapping
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops import _external
from nsabench.ops._decode import DecodeSizes
from nsabench.ops._op import Inputs, Op, Probe, Shape, Size, Work
from nsabench.ops._probes import COMMON_LOGIT, STRIDED
from nsabench.ops._sequences import compared

# Other modules import these names. They call functions as `ops.get`.
__all__ = [
    "COMMON_LOGIT",
    "STRIDED",
    "DecodeSizes",
    "Inputs",
    "Op",
    "Probe",
    "Shape",
    "Size",
    "Work",
    "compared",
]

Sizes = tuple[tuple[str, int], ...]


@cache
def shipped() -> tuple[str, ...]:
    modules = (m.name for m in pkgutil.iter_modules(__path__))
    return tuple(sorted(m for m in modules if not m.startswith("_")))


def names() -> tuple[str, ...]:
    return tuple(sorted({*shipped(), *_external.installed(), *_external.from_files}))


def load_file(path: Path, expected_sha256: str | None = None) -> Op:
    owners = {
        **{name: f"{_external.owners(name)} has one" for name in _external.installed()},
        **dict.fromkeys(shipped(), "one ships"),
    }
    return _external.load_file(path, owners, expected_sha256)


def refuse_other(plan: Plan) -> None:
    """Raise `UsageError` if the plan's op from a file is not the one that is loaded."""
    if not has_op_of(plan):
        file = Path(plan.ops).name
        raise UsageError(
            f"this run was made with the op of {file} (sha256 {plan.ops_sha256[:12]}), which "
            f"{'is not the file given now' if _external.from_files else 'was not given'}",
            f"give that file: --ops {file}.",
        )


def has_op_of(plan: Plan) -> bool:
    return not plan.ops or plan.ops_sha256 in {d for _, d in _external.from_files.values()}


def find(name: str) -> Op | None:
    """Return the op of that name, or None. Raises `UsageError` if the op cannot be imported."""
    if name in shipped():
        op: Op = importlib.import_module(f"{__name__}.{name}").OP
        return op
    if name in _external.from_files:
        return _external.from_files[name][0]
    if name in _external.installed():
        return _external.import_entry_point(name)
    return None


def get(name: str, asked_by: str = "") -> Op:
    """Return the op of that name. Raises `UsageError`, naming `asked_by`, if there is none."""
    op = find(name)
    if op is not None:
        return op
    near = difflib.get_close_matches(name, names(), 1)
    raise UsageError(
        f"{asked_by}{': ' if asked_by else ''}there is no op {name!r}",
        f"did you mean {near[0]!r}?"
        if near
        else f"the ops are {', '.join(names())}; load your own with --ops FILE.py.",
    )


def sizes(case: Case) -> Shape:
    return get(case.op).shape_model.model_validate(case.shape)


def computed(case: Case, name: str) -> Case:
    """Return `case` as a case of the op `name`. Without a name, return `case` itself."""
    if not name:
        return case
    op = get(name)
    if case.direction not in op.directions:
        raise UsageError(f"the op {name} has no {case.direction}", "leave the alternative out.")
    same = case.distribution in op.distributions
    shape = {size: case.shape[size] for size in op.shape_model.model_fields if size in case.shape}
    return case.model_copy(
        update={
            "op": name,
            "shape": op.shape_model.model_validate(shape).model_dump(),
            "distribution": case.distribution if same else op.distributions[0],
        }
    )


def probes(case: Case) -> Mapping[str, Probe]:
    return get(case.op).probes(case)


def series_key(case: Any) -> Hashable:
    """Return a key that cases (or their records) share if they differ only in length."""
    inputs = case.op, case.dtype, case.direction, case.distribution, sizes_but_length(case)
    return *inputs, case.mode


def sizes_but_length(case: Any) -> Sizes:
    axis = get(case.op).length_axis
    return tuple(sorted((name, size) for name, size in case.shape.items() if name != axis))


def work(case: Case) -> Work:
    shape = tuple(case.shape.items())
    return _count(get(case.op), shape, case.direction, case.dtype, case.distribution, case.seed)


@lru_cache(maxsize=4096)
def _count(
    op: Op, shape: Sizes, direction: Direction, dtype: DType, distribution: str, seed: int
) -> Work:
    method = "work" if direction is Direction.FORWARD else f"{direction}_work"
    sizes = op.shape_model.model_validate(dict(shape))
    question = partial(getattr(op, method), sizes, dtype, distribution, seed)
    if op.name not in shipped():
        return _external.ask_method(question, op, method, Work)
    work: Work = question()
    return work


def computed_work(case: Case, name: str) -> Work:
    try:
        return work(computed(case, name))
    except UsageError:  # there is no such op, or it lacks this direction: nothing was measured
        return Work(0, 0)


def refuse_unanswered(case: Case) -> None:
    """Raise `UsageError` if `length`, `terms` or `work` fails in an op that does not ship."""
    op = get(case.op)
    if op.name in shipped():
        return
    shape = sizes(case)
    _external.ask_method(lambda: op.length(shape), op, "length", int)
    _external.ask_method(lambda: op.terms(shape), op, "terms", int)
    work(case)
