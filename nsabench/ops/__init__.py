"""The ops. Each module of this folder without a leading underscore holds one, under the name `OP`;
others come from entry points of the group `nsabench.ops` and from the file of `--ops`."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cache, lru_cache
from pathlib import Path
from typing import Protocol

from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.plan import Plan
from nsabench.model.vocabulary import L2, Direction, DType, Mode
from nsabench.ops import _left_out as rows_left_out
from nsabench.ops import _outside
from nsabench.ops._contract import Inputs, Op, Shape, Size, Work
from nsabench.ops._decode import DecodeSizes
from nsabench.ops._legal import Legal
from nsabench.processes import each

__all__ = [
    "DecodeSizes",
    "Inputs",
    "Legal",
    "Op",
    "Shape",
    "Size",
    "Work",
    "computed",
    "computed_work",
    "count",
    "find",
    "get",
    "has_op_of",
    "ladder",
    "load_file",
    "names",
    "refuse_other",
    "refuse_unanswered",
    "rows_left_out",
    "shipped",
    "sizes",
    "terms",
    "to_measure",
    "work",
]

MANY = 1 << 18  # numbers that are drawn in some 10 ms
FEW = 4  # selections: of fewer no processes are worth it
# An op, its sizes, the direction, dtype and distribution, and the seed.
_Key = tuple[Op, tuple[tuple[str, int], ...], Direction, DType, str, int]
_counted: dict[_Key, Work] = {}


@cache
def shipped() -> tuple[str, ...]:
    modules = (m.name for m in pkgutil.iter_modules(__path__))
    return tuple(sorted(m for m in modules if not m.startswith("_")))


def names() -> tuple[str, ...]:
    """The ops that a run can be made of."""
    return tuple(sorted({*shipped(), *_outside.installed(), *_outside.from_files}))


def load_file(path: Path, expected_sha256: str | None = None) -> Op:
    """The op of the user's file, which can be named from now on.

    expected_sha256: what the file must be; None: whatever it is. Raises `UsageError` when the file
    is another, cannot be imported, imports torch, or holds no op, or one whose name is taken.
    """
    owners = {
        **{name: f"{_outside.owners(name)} has one" for name in _outside.installed()},
        **dict.fromkeys(shipped(), "one ships"),
    }
    return _outside.load_file(path, owners, expected_sha256)


def refuse_other(plan: Plan) -> None:
    """Raises `UsageError` when the plan's op from outside is not the one that is there: what is
    derived from the run would not be what it was."""
    if not has_op_of(plan):
        file = Path(plan.ops).name
        raise UsageError(
            f"this run was made with the op of {file} (sha256 {plan.ops_sha256[:12]}), which "
            f"{'is another one now' if _outside.from_files else 'is not known here'}",
            f"give that file: --ops {file}.",
        )


def has_op_of(plan: Plan) -> bool:
    """Whether the op of the plan's file, if it has one, is there, as it was."""
    return not plan.ops or plan.ops_sha256 in {d for _, d in _outside.from_files.values()}


def find(name: str) -> Op | None:
    """Return the op of that name; None if it is not installed.

    Raises `UsageError` when it is installed and cannot be imported.
    """
    if name in shipped():
        return _shipped(name)
    if name in _outside.from_files:
        return _outside.from_files[name][0]
    if name in _outside.installed():
        return _outside.of_entry_point(name)
    return None


@cache
def _shipped(name: str) -> Op:
    op = importlib.import_module(f"{__name__}.{name}").OP
    assert isinstance(op, Op)
    return op


def get(name: str) -> Op:
    """The op of a record. Raises `UsageError` when it is not installed."""
    op = find(name)
    if op is None:
        raise _unknown(name, "")
    return op


def to_measure(name: str, asked_by: str) -> Op:
    """Return the op that a matrix or an implementation names. Raises `UsageError`, naming
    `asked_by`, if there is none."""
    op = find(name)
    if op is None:
        raise _unknown(name, f"{asked_by}: ")
    return op


def _unknown(name: str, who: str) -> UsageError:
    near = difflib.get_close_matches(name, names(), 1)
    return UsageError(
        f"{who}there is no op {name!r}",
        f"did you mean {near[0]!r}?"
        if near
        else f"the ops are {', '.join(names())}; one of your own comes with --ops FILE.py.",
    )


def sizes(case: Case) -> Shape:
    """The shape of a case as its op's own model."""
    return get(case.op).shape_model.model_validate(case.shape)


def computed(case: Case, name: str) -> Case:
    """The case of the op `name` that an alternative to this case's op is: of the same sizes, as far
    as that op has them, on values drawn of the same seed. No name: the case itself.

    Raises `UsageError` where that op has no such case.
    """
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


def terms(case: Case) -> int:
    """How many terms the longest sum of the case has."""
    return get(case.op).terms(sizes(case))


class Rung(Protocol):
    """What a ladder is made of: a case, or whatever was measured on one."""

    @property
    def op(self) -> str: ...
    @property
    def shape(self) -> Mapping[str, int]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def distribution(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def l2(self) -> L2: ...


def ladder(rung: Rung) -> Hashable:
    """The same for cases that differ in nothing but their length."""
    called = rung.streams, rung.mode, rung.l2
    rest = sizes_but_length(rung)
    return rung.op, rung.dtype, rung.direction, rung.distribution, *called, rest


def sizes_but_length(rung: Rung) -> tuple[tuple[str, int], ...]:
    """The sizes of a case, but that which its ladder goes along."""
    axis = get(rung.op).length_axis
    return tuple(sorted((name, size) for name, size in rung.shape.items() if name != axis))


def work(case: Case) -> Work:
    """Compulsory work of a case: one call a stream."""
    key = _key(case)
    one = _counted.get(key) or _work(*key)
    return Work(one.bytes_min * case.streams, one.flops * case.streams)


def count(cases: Iterable[Case]) -> None:
    """Count the work of those cases that draw many numbers for it, on all cores, so that `work` has
    it at hand. Raises as that does."""
    alike: dict[Hashable, dict[_Key, None]] = {}
    for case in cases:
        key = op, shape, _, _, distribution, seed = _key(case)
        if op.name in shipped() and key not in _counted and op.drawn(sizes(case)) >= MANY:
            alike.setdefault((op.name, shape, distribution, seed), {})[key] = None
    groups = [list(keys) for keys in alike.values()]
    for keys, works in zip(groups, each(_works, groups, worth_it=FEW), strict=True):
        _counted.update(zip(keys, works, strict=True))


def computed_work(case: Case, name: str) -> Work:
    """Compulsory work of an alternative to a case: that of the op `name`, which it computes."""
    try:
        return work(computed(case, name))
    except UsageError:  # that op has no such case, and so nothing was measured
        return Work(0, 0)


def _key(case: Case) -> _Key:
    shape = tuple(case.shape.items())
    return get(case.op), shape, case.direction, case.dtype, case.distribution, case.seed


def _works(keys: Sequence[_Key]) -> list[Work]:
    return [_work(*key) for key in keys]


# It may draw a whole selection to count what must be read.
@lru_cache(maxsize=4096)
def _work(
    op: Op,
    shape: tuple[tuple[str, int], ...],
    direction: Direction,
    dtype: DType,
    distribution: str,
    seed: int,
) -> Work:
    method = {
        Direction.FORWARD: "work",
        Direction.BACKWARD: "backward_work",
        Direction.STEP: "step_work",
    }[direction]
    count = getattr(op, method)
    sizes = op.shape_model.model_validate(dict(shape))
    if op.name in shipped():
        done: Work = count(sizes, dtype, distribution, seed)
        return done
    asked: Work = _outside.answer_of(lambda: count(sizes, dtype, distribution, seed), op, method)
    return asked


def refuse_unanswered(case: Case) -> None:
    """Ask an op that does not ship all that is asked of a case once it was measured.

    Raises `UsageError` when it fails, or answers what no op can mean.
    """
    op = get(case.op)
    if op.name in shipped():
        return
    shape = sizes(case)
    _outside.answer_of(lambda: op.length(shape), op, "length")
    _outside.answer_of(lambda: op.terms(shape), op, "terms")
    work(case)
