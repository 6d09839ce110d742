"""The controls of an op: each trick that applies to it, around the op's first baseline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

from nsabench import ops
from nsabench.model.vocabulary import Role, Runs
from nsabench.ops import Op
from nsabench.registry.declaration import Honest, Implementation, Trick, tricks

SHIPPED = "nsabench"  # the source whose baselines come first
TIMED = (Runs.CUDA, Runs.CPU)


def controls(items: Sequence[Implementation]) -> Iterator[Implementation]:
    """The controls of every op that has a baseline among the items."""
    for name in dict.fromkeys(item.op for item in items if item.role is Role.BASELINE):
        op = ops.find(name)
        baseline = first_baseline(items, name)
        if op is not None and baseline is not None:
            yield from (
                _around(baseline, op, trick) for trick in tricks if _applies(trick, op, baseline)
            )


def first_baseline(items: Sequence[Implementation], op: str) -> Implementation | None:
    """What the controls of an op are wrapped around: of its baselines that run on most devices the
    one that was registered first, those that ship before others."""
    baselines = [i for i in items if i.op == op and i.role is Role.BASELINE]
    return min(
        (b for b in baselines if _devices(b)),
        key=lambda b: (-len(_devices(b)), b.source != SHIPPED),
        default=None,
    )


def _devices(item: Implementation) -> list[Runs]:
    """Where it runs at its own speed."""
    return [device for device in TIMED if device in item.devices]


def _applies(trick: Trick, op: Op, baseline: Implementation) -> bool:
    return (
        (not trick.ops or op.name in trick.ops)
        and any(direction in op.directions for direction in trick.directions or op.directions)
        and set(trick.distributions) <= set(op.distributions)
        and any(device in trick.devices for device in _devices(baseline))
    )


def _around(baseline: Implementation, op: Op, trick: Trick) -> Implementation:
    honest = Honest(op, baseline.name, baseline.call)
    return Implementation(
        op=op.name,
        name=trick.name,
        role=Role.CONTROL,
        devices=tuple(d for d in _devices(baseline) if d in trick.devices),
        caught_by=trick.caught_by,
        source=trick.source,
        call=partial(trick.call, honest),
        wraps=baseline.name if trick.wraps else "",
        computes_by=baseline.name,
        distributions=trick.distributions,
        directions=trick.directions,
        modes=trick.modes,
        least=trick.least,
    )
