"""Label cases by sizes, dtype and whatever is not the default, and count cautions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.record import Record
from nsabench.model.vocabulary import Direction, DType, Mode

SHORT = {DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16", DType.FLOAT32: "fp32"}
Labelled = Case | Record


def usual_distribution(name: str) -> str:
    """Return the distribution that labels do not mention; empty if the op is not installed."""
    op = ops.find(name)
    return op.distributions[0] if op else ""


def axis(name: str) -> str:
    """Return the name of the size that is an op's length; `L` if the op is not installed."""
    op = ops.find(name)
    return op.length_axis if op else "L"


def shape(labelled: Labelled, *, length: bool = False) -> str:
    """Return the sizes, as in `N1024 H8 D128`: Dv only if it is not D, the length if `length`."""
    op, words, along = ops.find(labelled.op), [], axis(labelled.op)
    for size in op.shape_model.model_fields if op else labelled.shape:
        value = labelled.shape.get(size)
        if value is None or (size == along and not length):
            continue
        if size == "Dv" and value == labelled.shape.get("D"):
            continue
        # A long name needs `=`: `block_size=64`.
        words.append(f"{size}={value}" if len(size) > 2 else f"{size}{value}")
    return " ".join(words)


def words(labelled: Labelled) -> list[str]:
    found = [*shape(labelled, length=True).split(), SHORT[labelled.dtype]]
    if labelled.direction is not Direction.FORWARD:
        found.append(labelled.direction)
    if labelled.distribution not in ("", usual_distribution(labelled.op)):
        found.append(labelled.distribution)
    if labelled.mode is Mode.GRAPH:
        found.append("graph")
    return found


def case(labelled: Labelled) -> str:
    return " ".join(words(labelled))


def constant(cases: Iterable[Labelled]) -> dict[str, list[str]]:
    """Return for each op the words that all its cases share, or no words if it has one case."""
    shared: dict[str, list[str]] = {}
    different: dict[str, set[str]] = {}
    for labelled in cases:
        own = words(labelled)
        different.setdefault(labelled.op, set()).add(" ".join(own))
        shared[labelled.op] = [w for w in shared.get(labelled.op, own) if w in own]
    return {op: same if len(different[op]) > 1 else [] for op, same in shared.items()}


def case_with_op(labelled: Labelled) -> str:
    return f"{labelled.op} {case(labelled)}"


def case_with_id(labelled: Labelled) -> str:
    case_id = labelled.id if isinstance(labelled, Case) else labelled.case_id
    return f"{case_with_op(labelled)} [{case_id}]"


def count_cautions(cautions: Iterable[str]) -> str:
    """Count cautions in words: `no specialised baseline in 3 of 16`; empty without any."""
    given = list(cautions)
    counts = Counter(text for text in given if text)
    return "; ".join(f"{text} in {n} of {len(given)}" for text, n in counts.items())
