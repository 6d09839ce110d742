"""How a case is called where people read: its sizes, and what is not the default."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.vocabulary import L2, Direction, DType, Mode

SHORT = {DType.FLOAT16: "fp16", DType.BFLOAT16: "bf16", DType.FLOAT32: "fp32"}


class Labelled(Protocol):
    """What tells a case from others: a case has it, and so has whatever was measured on one."""

    @property
    def op(self) -> str: ...
    @property
    def shape(self) -> Mapping[str, int]: ...
    @property
    def dtype(self) -> DType: ...
    @property
    def direction(self) -> Direction: ...
    @property
    def distribution(self) -> str: ...
    @property
    def streams(self) -> int: ...
    @property
    def mode(self) -> Mode: ...
    @property
    def l2(self) -> L2: ...


class Identified(Labelled, Protocol):
    """The same with the id of its case, as records have it."""

    @property
    def case_id(self) -> str: ...


def sizes(labelled: Labelled) -> list[str]:
    """The names of the sizes of its op; of an op that is not installed, those that it has."""
    op = ops.find(labelled.op)
    return list(op.shape_model.model_fields if op else labelled.shape)


def usual_distribution(name: str) -> str:
    """The one that a label leaves out; none for an op that is not installed."""
    op = ops.find(name)
    return op.distributions[0] if op else ""


def axis(name: str) -> str:
    """The size that the op's lengths are of; `L` for an op that is not installed."""
    op = ops.find(name)
    return op.length_axis if op else "L"


def shape(labelled: Labelled, *, length: bool = False) -> str:
    """`N1024 H8 D128`: Dv only where it differs from D, its length only if asked for."""
    words, along = [], axis(labelled.op)
    for size in sizes(labelled):
        value = labelled.shape.get(size)
        if value is None or (size == along and not length):
            continue
        if size == "Dv" and value == labelled.shape.get("D"):
            continue
        # `block_size64` would not be read as one.
        words.append(f"{size}={value}" if len(size) > 2 else f"{size}{value}")
    return " ".join(words)


def words(labelled: Labelled) -> list[str]:
    """Everything that tells a case from its neighbours but the op, a size or a trait a word."""
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
    """A case on one line, with everything that tells it from its neighbours but the op."""
    return " ".join(words(labelled))


def constant(cases: Iterable[Labelled]) -> dict[str, list[str]]:
    """The words that all cases of an op share, by op, in their order; of an op with one case,
    none."""
    shared: dict[str, list[str]] = {}
    different: dict[str, set[str]] = {}
    for labelled in cases:
        own = words(labelled)
        different.setdefault(labelled.op, set()).add(" ".join(own))
        shared[labelled.op] = [w for w in shared.get(labelled.op, own) if w in own]
    return {op: same if len(different[op]) > 1 else [] for op, same in shared.items()}


def of_case(labelled: Labelled) -> str:
    """Op, sizes, and what is not the default."""
    return f"{labelled.op} {case(labelled)}"


def named_case(planned: Case) -> str:
    """A case of a plan, and the id that its log and its records have."""
    return f"{of_case(planned)} [{planned.id}]"


def named(identified: Identified) -> str:
    """A case on one line, and the id that its log and the other files have."""
    return f"{of_case(identified)} [{identified.case_id}]"
