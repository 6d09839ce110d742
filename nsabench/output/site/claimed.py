"""What a library says of its own speed, beside what was measured of it at the same sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from nsabench.assessment import labels
from nsabench.model.record import Record
from nsabench.model.vocabulary import Regime, Status
from nsabench.packages import claims
from nsabench.packages.claims import Claim

NOT_HERE = "not measured at these sizes in this run"
IN_SUM = "a claim in sum: the table above is what was measured"


@dataclass(frozen=True)
class Claimed:
    """measured: in words, times of the device, a case each."""

    claim: Claim
    measured: tuple[str, ...]


def beside(op: str, direction: str, records: Sequence[Record]) -> list[Claimed]:
    """The claims of the op in the direction. records: those of a run in it."""
    return [
        Claimed(claim, tuple(dict.fromkeys(_measured(claim, records))))
        for claim in claims.of(op, direction)
    ]


def _measured(claim: Claim, records: Sequence[Record]) -> Iterator[str]:
    own = [r for r in records if r.package == claim.package]
    if not claim.shape:
        timed = any(r.status is Status.OK and r.timed_in(Regime.DEVICE) for r in own)
        yield IN_SUM if timed else NOT_HERE
        return
    found = [r for r in own if _is_of(claim, r)]
    for r in found:
        name, case = r.implementation, labels.case(r)
        time = r.timed_in(Regime.DEVICE)
        if r.status is not Status.OK:
            yield f"{name} is {r.status} on {case}"
        elif time is not None:
            yield f"{name} takes {time:.4g} ms on the device on {case}"
    if not found:
        yield NOT_HERE


def _is_of(claim: Claim, record: Record) -> bool:
    """Whether it has the sizes that the claim states; others may differ."""
    return all(record.shape.get(name) == size for name, size in claim.shape.items())
