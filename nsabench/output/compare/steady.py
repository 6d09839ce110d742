"""Which implementations are the same code in two runs, and so what differs there is the host."""

from __future__ import annotations

from nsabench.assessment.verdict import Key
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Role, Status
from nsabench.output.compare.side import Side

# Where one of these differs, no code is known to be the same on both devices.
ALIKE = ("device", "torch", "CUDA")
SHIPPED = "nsabench"
ROLES = (Role.BASELINE, Role.ALTERNATIVE)


def steady(first: Side, later: Side) -> dict[Key, Role]:
    """The baselines and alternatives, by case and name, that ran on both sides and cannot have
    changed: the same device, torch, CUDA, source and library, and no other Triton where Triton
    compiles them."""
    if any(first.versions.get(name) != later.versions.get(name) for name in ALIKE):
        return {}
    same_triton = first.versions.get("triton") == later.versions.get("triton")
    theirs = {(i.op, i.name): i for i in later.plan.implementations}
    same = {
        (i.op, i.name): i.role
        for i in first.plan.implementations
        if (other := theirs.get((i.op, i.name))) is not None
        and i.role in ROLES
        and _same_source(i, other, first, later)
        and (same_triton or (_without_triton(i) and _without_triton(other)))
    }
    return {
        key: same[record.op, record.implementation]
        for key, record in first.records.items()
        if (record.op, record.implementation) in same
        and (other_record := later.records.get(key)) is not None
        and record.status is other_record.status is Status.OK
    }


def _without_triton(info: ImplementationInfo) -> bool:
    """What ships says whether Triton compiles it; of other baselines nobody knows."""
    return info.source == SHIPPED and not info.compiled_by


def _same_source(
    ours: ImplementationInfo, theirs: ImplementationInfo, first: Side, later: Side
) -> bool:
    digest = first.plan.sources.get(ours.source)
    return (
        digest is not None
        and digest == later.plan.sources.get(theirs.source)
        and ours.origin == theirs.origin
    )
