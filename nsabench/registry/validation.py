"""Is what was declared what the op asks for, and can it be told from everything else?"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from nsabench import ops
from nsabench.assessment.checks import all_checks
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Role, Runs
from nsabench.ops import Op
from nsabench.registry.declaration import Implementation


def validate(items: Sequence[Implementation]) -> None:
    """Raises `UsageError` when one names an unknown op, has the wrong signature, takes a name that
    another one has, or says what only a control says."""
    seen: dict[tuple[str, str], Implementation] = {}
    signatures: dict[tuple[object, ...], inspect.Signature] = {}
    for item in items:
        if not isinstance(item.name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", item.name):
            raise UsageError(
                f"{item.name!r} ({item.source}) is no name for an implementation",
                "use up to 64 letters, digits, '_', '-' and '.'.",
            )
        if not item.devices:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}) runs on no device",
                f"devices are among {', '.join(Runs)}.",
            )
        _validate_control(item)
        op = ops.to_measure(item.op, f"implementation {item.name!r} ({item.source})")
        if item.computes:
            op = _computed(item, op)
        unknown = [d for d in item.distributions if d not in op.distributions]
        if unknown:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}): {op.name} has no distribution "
                f"{unknown[0]!r}",
                f"its distributions are {', '.join(op.distributions)}.",
            )
        twin = seen.setdefault((item.op, item.name), item)
        if twin is not item:
            raise UsageError(
                f"two implementations of {item.op} are named {item.name!r}: "
                f"one from {twin.source}, one from {item.source}",
                "rename one of them.",
            )
        try:
            told = _tells(item.call)
            if told not in signatures:
                signatures[told] = _signature(item.call)
            signature, options = signatures[told], dict.fromkeys(op.options)
            signature.bind(*op.arguments, **options)
            signature.bind(*op.arguments, *op.optional, **options)
        except TypeError as error:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}) cannot be called as "
                f"{op.call_form(item.name)}: {error}",
                "give the function that signature.",
            ) from None
    for item in items:
        wrapped = seen.get((item.op, item.wraps))
        if item.wraps and (wrapped is None or wrapped.role is not Role.BASELINE):
            raise UsageError(
                f"control {item.name!r} ({item.source}) wraps {item.wraps!r}, which is no baseline "
                f"of {item.op}",
                "name the baseline that it is without its trick, or leave `wraps` away.",
            )


def _computed(item: Implementation, op: Op) -> Op:
    """The op that an alternative computes on the cases of another one."""
    who = f"implementation {item.name!r} ({item.source})"
    computed = ops.to_measure(item.computes, who)
    fields = computed.shape_model.model_fields
    missing = [name for name, f in fields.items() if f.is_required()]
    missing = [name for name in missing if name not in op.shape_model.model_fields]
    if computed is op or missing:
        raise UsageError(
            f"{who} cannot be an alternative to {op.name}: {computed.name} "
            + (f"has the size {missing[0]}, which that has not" if missing else "is that op"),
            "name an op that is told by sizes of the other one.",
        )
    return computed


def _tells(call: Callable[..., Any]) -> tuple[object, ...]:
    """What its signature hangs on: a control is one function, around a baseline of each op."""
    if type(call) is partial and not vars(call):  # else it may say another one
        return id(call.func), len(call.args), *call.keywords
    return (id(call),)


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except ValueError:  # a builtin does not tell: its first call will
        return inspect.signature(lambda *args, **options: None)


def _validate_control(item: Implementation) -> None:
    is_control = item.role is Role.CONTROL
    if is_control and item.caught_by not in all_checks():
        raise UsageError(
            f"control {item.name!r} ({item.source}) is to be caught by {item.caught_by!r}, which "
            f"is no check",
            f"the checks are {', '.join(sorted(all_checks()))}.",
        )
    if not is_control and (item.caught_by or item.wraps):
        raise UsageError(
            f"implementation {item.name!r} ({item.source}) is a {item.role} and yet says what it "
            f"is caught by or wraps",
            'only a control does: leave that away, or give it role="control".',
        )
