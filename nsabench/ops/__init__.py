"""The ops. Each module of this folder holds one, under the name `OP`; adding a file adds an op."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from functools import cache

from nsabench.errors import UsageError
from nsabench.ops.contract import Op


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
