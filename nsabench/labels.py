"""Names cases where people read: by their sizes, and what is not the default."""

from __future__ import annotations

from collections.abc import Iterable

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.record import Record
from nsabench.model.vocabulary import L2, Direction, DType, Mode

SHORT = {DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16", DType.FLOAT32: "fp32"}
Labelled = Case | Record


def usual_distribution(name: str) -> str:
    """Return what a label leaves out; nothing for an op that is not installed."""
    op = ops.find(name)
    return op.distributions[0] if op else ""


def axis(name: str) -> str:
    """Return the size that the op's lengths are of; `L` for an op that is not installed."""
    op = ops.find(name)
    return op.length_axis if op else "L"


def shape(labelled: Labelled, *, length: bool = False) -> str:
    """`N1024 H8 D128`: Dv only where it differs from D, its length only if asked for."""
    op, words, along = ops.find(labelled.op), [], axis(labelled.op)
    for size in op.shape_model.model_fields if op else labelled.shape:
        value = labelled.shape.get(size)
        if value is None or (size == along and not length):
            continue
        if size == "Dv" and value == labelled.shape.get("D"):
            continue
        # `block_size64` would not be read as one.
        words.append(f"{size}={value}" if len(size) > 2 else f"{size}{value}")
    return " ".join(words)


def words(labelled: Labelled) -> list[str]:
    """Return all that tells a case from its neighbours but the op, a size or a trait a word."""
    said = [*shape(labelled, length=True).split(), SHORT[labelled.dtype]]
    if labelled.direction is not Direction.FORWARD:
        said.append(labelled.direction)
    if labelled.distribution not in ("", usual_distribution(labelled.op)):
        said.append(labelled.distribution)
    if labelled.streams != 1:
        said.append(f"{labelled.streams} streams")
    if labelled.mode is Mode.GRAPH:
        said.append("graph")
    if labelled.l2 is L2.WARM:
        said.append("warm L2")
    return said


def case(labelled: Labelled) -> str:
    return " ".join(words(labelled))


def constant(cases: Iterable[Labelled]) -> dict[str, list[str]]:
    """Return the words that all cases of an op share, by op; none for an op with one case."""
    shared: dict[str, list[str]] = {}
    different: dict[str, set[str]] = {}
    for labelled in cases:
        own = words(labelled)
        different.setdefault(labelled.op, set()).add(" ".join(own))
        shared[labelled.op] = [w for w in shared.get(labelled.op, own) if w in own]
    return {op: same if len(different[op]) > 1 else [] for op, same in shared.items()}


def of_case(labelled: Labelled) -> str:
    """Return the op and `case`."""
    return f"{labelled.op} {case(labelled)}"


def named(labelled: Labelled) -> str:
    """Return `of_case` with the id that its log and the other files have."""
    case_id = labelled.id if isinstance(labelled, Case) else labelled.case_id
    return f"{of_case(labelled)} [{case_id}]"
