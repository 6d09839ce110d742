"""What there is to measure: controls wrapped around the first baseline of each op, and everything
checked against its op."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from nsabench import ops
from nsabench.checks import all_checks
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Role, Runs
from nsabench.ops import Op
from nsabench.registry.declaration import Honest, Implementation, tricks

SHIPPED = "nsabench"  # the source whose baselines come first
TIMED = (Runs.CUDA, Runs.CPU)


def controls(items: Sequence[Implementation]) -> Iterator[Implementation]:
    """Yield the controls of every op that has a baseline among the items."""
    for name in dict.fromkeys(item.op for item in items if item.role is Role.BASELINE):
        op, baseline = ops.find(name), first_baseline(items, name)
        if op is None or baseline is None:
            continue
        for trick in tricks:
            control, devices = trick.control, _devices(baseline)
            devices = [device for device in devices if device in control.devices]
            shared = set(control.directions or op.directions) & set(op.directions)
            fits = set(control.distributions) <= set(op.distributions)
            if devices and shared and fits and (not trick.ops or name in trick.ops):
                yield replace(
                    control,
                    op=name,
                    devices=tuple(devices),
                    call=partial(control.call, Honest(op, baseline.name, baseline.call)),
                    wraps=baseline.name if trick.wraps else "",
                    computes_by=baseline.name,
                )


def first_baseline(items: Sequence[Implementation], op: str) -> Implementation | None:
    """Return what the controls of an op are wrapped around.

    Of its baselines that run on most devices it is the first registered; shipped ones come first.
    """
    baselines = [i for i in items if i.op == op and i.role is Role.BASELINE]
    return min(
        (b for b in baselines if _devices(b)),
        key=lambda b: (-len(_devices(b)), b.source != SHIPPED),
        default=None,
    )


def _devices(item: Implementation) -> list[Runs]:
    """Return where it runs at its own speed."""
    return [device for device in TIMED if device in item.devices]


def validate(items: Sequence[Implementation]) -> None:
    """Raise `UsageError` if an implementation names an unknown op, has the wrong signature, takes a
    name that another one has, or says what only a control says."""
    seen: dict[tuple[str, str], Implementation] = {}
    signatures: dict[tuple[object, ...], inspect.Signature] = {}
    for item in items:
        who = f"implementation {item.name!r} ({item.source})"
        if not isinstance(item.name, str) or not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", item.name):
            raise UsageError(
                f"{item.name!r} ({item.source}) is no name for an implementation",
                "use up to 64 letters, digits, '_', '-' and '.'.",
            )
        if not item.devices:
            raise UsageError(f"{who} runs on no device", f"devices are among {', '.join(Runs)}.")
        _validate_control(item, who)
        op = ops.to_measure(item.op, who)
        if item.computes:
            op = _computed(item, op, who)
        unknown = [d for d in item.distributions if d not in op.distributions]
        if unknown:
            raise UsageError(
                f"{who}: {op.name} has no distribution {unknown[0]!r}",
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
            function = _function(item.call)
            if function not in signatures:
                signatures[function] = _signature(item.call)
            signature, options = signatures[function], dict.fromkeys(op.options)
            signature.bind(*op.arguments, **options)
            signature.bind(*op.arguments, *op.optional, **options)
        except TypeError as error:
            raise UsageError(
                f"{who} cannot be called as {op.call_form(item.name)}: {error}",
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


def _computed(item: Implementation, op: Op, who: str) -> Op:
    """Return the op that an alternative computes on the cases of another one."""
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


def _function(call: Callable[..., Any]) -> tuple[object, ...]:
    """Return what decides the signature: a control is one function, around many baselines."""
    if type(call) is partial and not vars(call):  # else it may have another signature
        return id(call.func), len(call.args), *call.keywords
    return (id(call),)


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except ValueError:  # of a builtin: its first call will tell
        return inspect.signature(lambda *args, **options: None)


def _validate_control(item: Implementation, who: str) -> None:
    is_control = item.role is Role.CONTROL
    if is_control and item.caught_by not in all_checks():
        raise UsageError(
            f"control {item.name!r} ({item.source}) is to be caught by {item.caught_by!r}, which "
            f"is no check",
            f"the checks are {', '.join(sorted(all_checks()))}.",
        )
    if not is_control and (item.caught_by or item.wraps):
        raise UsageError(
            f"{who} is a {item.role} and yet says what it is caught by or wraps",
            'only a control does: leave that away, or give it role="control".',
        )
