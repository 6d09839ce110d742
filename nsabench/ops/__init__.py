"""The ops. Each module of this folder holds one, under the name `OP`; adding a file adds an op."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache, lru_cache

from nsabench.errors import UsageError
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, DType
from nsabench.ops.contract import Op, Shape, Work


@cache
def names() -> tuple[str, ...]:
    return tuple(
        sorted(
            m.name
            for m in pkgutil.iter_modules(__path__)
            if m.name not in ("contract", "labels") and m.name[0] != "_"
        )
    )


def get(name: str, asked_by: str = "") -> Op:
    """The op of that name. Raises `UsageError`, naming `asked_by`, when there is none."""
    if name not in names():
        near = difflib.get_close_matches(name, names(), 1)
        raise UsageError(
            f"{asked_by + ': ' if asked_by else ''}there is no op {name!r}",
            f"did you mean {near[0]!r}?" if near else f"the ops are {', '.join(names())}.",
        )
    op = importlib.import_module(f"{__name__}.{name}").OP
    assert isinstance(op, Op)
    return op


def sizes(case: Case) -> Shape:
    """The shape of a case as its op's own model."""
    return get(case.op).shape_model.model_validate(case.shape)


def work(case: Case) -> Work:
    """Compulsory work of a case: one call a stream."""
    shape = tuple(case.shape.items())
    one = _work(case.op, shape, case.direction, case.dtype, case.distribution, case.seed)
    return Work(one.bytes_min * case.streams, one.flops * case.streams)


# It may draw a whole selection to count what must be read.
@lru_cache(maxsize=4096)
def _work(
    name: str,
    shape: tuple[tuple[str, int], ...],
    direction: Direction,
    dtype: DType,
    distribution: str,
    seed: int,
) -> Work:
    op = get(name)
    count = op.work if direction is Direction.FORWARD else op.backward_work
    return count(op.shape_model.model_validate(dict(shape)), dtype, distribution, seed)
