"""Wrap controls around baselines, and check all declarations."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from functools import partial

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Role, Runs
from nsabench.ops import Op
from nsabench.registry.declaration import Honest, Implementation, tricks

SHIPPED = "nsabench"  # the source whose baselines come first


def controls(items: Sequence[Implementation]) -> Iterator[Implementation]:
    for name in dict.fromkeys(item.op for item in items if item.role is Role.BASELINE):
        op, baseline = ops.find(name), first_baseline(items, name)
        if op is None or baseline is None:
            continue
        honest = Honest(op, baseline.name, baseline.call)
        for trick, only in tricks:
            devices = tuple(d for d in _timed_devices(baseline) if d in trick.devices)
            shared = set(trick.directions or op.directions) & set(op.directions)
            fits = set(trick.distributions) <= set(op.distributions)
            if devices and shared and fits and (not only or name in only):
                # If logits are large, rounding may hide the mistake of a control.
                small = tuple(d for d in op.distributions if op.logit(d) <= 1)
                changed = {
                    "op": name,
                    "distributions": trick.distributions or small,
                    "devices": devices,
                    "call": partial(trick.call, honest),
                    "wraps": trick.wraps and baseline.name,
                    "computes_by": baseline.name,
                }
                yield trick.model_copy(update=changed)


def first_baseline(items: Sequence[Implementation], op: str) -> Implementation | None:
    baselines = [i for i in items if i.op == op and i.role is Role.BASELINE and _timed_devices(i)]
    return min(
        baselines, key=lambda b: (-len(_timed_devices(b)), b.source != SHIPPED), default=None
    )


def _timed_devices(item: Implementation) -> list[Runs]:
    return [device for device in (Runs.CUDA, Runs.CPU) if device in item.devices]


def validate(items: Sequence[Implementation]) -> None:
    """Raise `UsageError` for a name in use, or a declaration that is invalid for its op."""
    seen: dict[tuple[str, str], Implementation] = {}
    for item in items:
        twin = seen.setdefault((item.op, item.name), item)
        if twin is not item:
            raise UsageError(
                f"two implementations of {item.op} are named {item.name!r}: "
                f"one from {twin.source}, one from {item.source}",
                "rename one of them.",
            )
        if item.role is not Role.CONTROL:
            _validate_item(item)


def _validate_item(item: Implementation) -> None:
    label = f"implementation {item.name!r} ({item.source})"
    if not re.fullmatch(r"[A-Za-z0-9_.-]{1,64}", item.name):
        raise UsageError(
            f"{item.name!r} ({item.source}) is not a name for an implementation",
            "use up to 64 letters, digits, '_', '-' and '.'.",
        )
    if not item.devices:
        raise UsageError(f"{label} runs on no device", f"name some of {', '.join(Runs)}.")
    if (item.role is Role.ALTERNATIVE) != bool(item.computes):
        raise UsageError(
            f"{label} has the role {item.role} and computes {item.computes!r}",
            'give `computes` if and only if it is an alternative: role="alternative", '
            'computes="causal_attention".',
        )
    op = _get_computed_op(item, label)
    unknown = [d for d in item.distributions if d not in op.distributions]
    if unknown:
        raise UsageError(
            f"{label}: {op.name} has no distribution {unknown[0]!r}",
            f"its distributions are {', '.join(op.distributions)}.",
        )
    try:
        signature, options = inspect.signature(item.call), dict.fromkeys(op.options)
        signature.bind(*op.arguments, **options)
        signature.bind(*op.arguments, *op.optional, **options)
    except (TypeError, ValueError) as error:
        raise UsageError(
            f"{label} cannot be called as {op.call_form(item.name)}: {error}",
            "give the function that signature.",
        ) from None


def _get_computed_op(item: Implementation, label: str) -> Op:
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
            + (
                f"has the size {missing[0]}, which {op.name} does not have"
                if missing
                else "is that op"
            ),
            "name an op whose sizes are all sizes of the implementation's op.",
        )
    return computed
