"""Wrap controls around baselines, and check all declarations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from nsabench import ops
from nsabench.checks import all_checks
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Role, Runs
from nsabench.ops import Op
from nsabench.registry.declaration import Honest, Implementation, tricks

SHIPPED = "nsabench"  # the source whose baselines come first


def controls(items: Sequence[Implementation]) -> Iterator[Implementation]:
    """Yield the controls of every op that has a baseline."""
    for name in dict.fromkeys(item.op for item in items if item.role is Role.BASELINE):
        op, baseline = ops.find(name), first_baseline(items, name)
        if op is None or baseline is None:
            continue
        honest = Honest(op, baseline.name, baseline.call)
        for trick, of_ops in tricks:
            devices = tuple(d for d in _timed_devices(baseline) if d in trick.devices)
            shared = set(trick.directions or op.directions) & set(op.directions)
            fits = set(trick.distributions) <= set(op.distributions)
            if devices and shared and fits and (not of_ops or name in of_ops):
                changed = {
                    "op": name,
                    "devices": devices,
                    "call": partial(trick.call, honest),
                    "wraps": trick.wraps and baseline.name,
                    "computes_by": baseline.name,
                }
                yield trick.model_copy(update=changed)


def first_baseline(items: Sequence[Implementation], op: str) -> Implementation | None:
    """Return the baseline on most devices; shipped ones first, then the first registered."""
    baselines = [i for i in items if i.op == op and i.role is Role.BASELINE and _timed_devices(i)]
    return min(
        baselines, key=lambda b: (-len(_timed_devices(b)), b.source != SHIPPED), default=None
    )


def _timed_devices(item: Implementation) -> list[Runs]:
    return [device for device in (Runs.CUDA, Runs.CPU) if device in item.devices]


def validate(items: Sequence[Implementation]) -> None:
    """Raise `UsageError` for an unknown op, a wrong signature, a name in use, or a wrong role."""
    seen: dict[tuple[str, str], Implementation] = {}
    for item in items:
        label = f"implementation {item.name!r} ({item.source})"
        if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", item.name):
            raise UsageError(
                f"{item.name!r} ({item.source}) is not a name for an implementation",
                "use up to 64 letters, digits, '_', '-' and '.'.",
            )
        if not item.devices:
            raise UsageError(f"{label} runs on no device", f"devices are among {', '.join(Runs)}.")
        _validate_role(item, label)
        op = _get_computed_op(item, label)
        unknown = [d for d in item.distributions if d not in op.distributions]
        if unknown:
            raise UsageError(
                f"{label}: {op.name} has no distribution {unknown[0]!r}",
                f"its distributions are {', '.join(op.distributions)}.",
            )
        twin = seen.setdefault((item.op, item.name), item)
        if twin is not item:
            raise UsageError(
                f"two implementations of {item.op} are named {item.name!r}: "
                f"one from {twin.source}, one from {item.source}",
                "rename one of them.",
            )
    _validate_calls(items)
    for item in items:
        wrapped = seen.get((item.op, item.wraps))
        if item.wraps and (wrapped is None or wrapped.role is not Role.BASELINE):
            raise UsageError(
                f"control {item.name!r} ({item.source}) wraps {item.wraps!r}, which is not a "
                f"baseline of {item.op}",
                "name a baseline, or remove `wraps`.",
            )


def _validate_role(item: Implementation, label: str) -> None:
    is_control = item.role is Role.CONTROL
    if is_control and item.caught_by not in all_checks():
        raise UsageError(
            f"control {item.name!r} ({item.source}) has caught_by={item.caught_by!r}, which is "
            f"not a check",
            f"give it caught_by, one of {', '.join(sorted(all_checks()))}.",
        )
    if not is_control and (item.caught_by or item.wraps):
        raise UsageError(
            f"{label} is a {item.role}, but caught_by and wraps are for controls",
            'remove them, or give it role="control".',
        )
    if (item.role is Role.ALTERNATIVE) != bool(item.computes):
        raise UsageError(
            f"{label} has the role {item.role} and computes {item.computes!r}",
            'only an alternative has computes, such as role="alternative", '
            'computes="causal_attention".',
        )


def _get_computed_op(item: Implementation, label: str) -> Op:
    """Return its op, or the op that an alternative computes."""
    op = ops.get(item.op, label)
    if not item.computes:
        return op
    computed = ops.get(item.computes, label)
    missing = [
        name
        for name, field in computed.shape_model.model_fields.items()
        if field.is_required() and name not in op.shape_model.model_fields
    ]
    if computed is op or missing:
        raise UsageError(
            f"{label} cannot be an alternative to {op.name}: {computed.name} "
            + (f"has the size {missing[0]}, which {op.name} has not" if missing else "is that op"),
            "name an op whose sizes are all sizes of the implementation's op.",
        )
    return computed


def _validate_calls(items: Sequence[Implementation]) -> None:
    signatures: dict[tuple[object, ...], inspect.Signature] = {}
    for item in items:
        op, call = ops.get(item.computes or item.op), item.call
        key: tuple[object, ...] = (id(call),)
        if type(call) is partial and not vars(call):  # a control, around many baselines
            key = (id(call.func), len(call.args), *call.keywords)
        try:
            if key not in signatures:
                signatures[key] = _signature(call)
            signature, options = signatures[key], dict.fromkeys(op.options)
            signature.bind(*op.arguments, **options)
            signature.bind(*op.arguments, *op.optional, **options)
        except TypeError as error:
            raise UsageError(
                f"implementation {item.name!r} ({item.source}) cannot be called as "
                f"{op.call_form(item.name)}: {error}",
                "give the function that signature.",
            ) from None


def _signature(call: Callable[..., Any]) -> inspect.Signature:
    try:
        return inspect.signature(call)
    except ValueError:  # of a builtin: its first call will tell
        return inspect.signature(lambda *args, **options: None)
