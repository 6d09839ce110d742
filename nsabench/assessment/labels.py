"""How a case is called where people read: its sizes, and what is not the default."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nsabench import ops
from nsabench.model.case import Case
from nsabench.model.vocabulary import Mode

SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def sizes(record: Mapping[str, Any]) -> list[str]:
    """The names of the sizes of the record's op; of an op that is not installed, what it has."""
    op = ops.find(record["op"])
    if op is not None:
        return list(op.shape_model.model_fields)
    # Not above: it needs pyarrow, and who measures reads labels too.
    from nsabench.assessment.columns import RECORDS, SIZES

    fixed = {column.name for column in RECORDS} - SIZES
    return [name for name in record if name not in fixed]


def usual_distribution(name: str) -> str:
    """The one that a label leaves out; none for an op that is not installed."""
    op = ops.find(name)
    return op.distributions[0] if op else ""


def axis(name: str) -> str:
    """The size that the op's lengths are of; `L` for an op that is not installed."""
    op = ops.find(name)
    return op.length_axis if op else "L"


def shape(record: Mapping[str, Any], *, length: bool = False) -> str:
    """`N1024 H8 D128`: Dv only where it differs from D, its length only if asked for."""
    said, along = [], axis(record["op"])
    for size in sizes(record):
        value = record.get(size)
        if value is None or (size == along and not length):
            continue
        if size == "Dv" and value == record.get("D"):
            continue
        # `block_size64` would not be read as one.
        said.append(f"{size}={value}" if len(size) > 2 else f"{size}{value}")
    return " ".join(said)


def case(record: Mapping[str, Any]) -> str:
    """A case on one line, with everything that tells it from its neighbours but the op."""
    said = [shape(record, length=True), SHORT.get(record["dtype"], record["dtype"])]
    if record["direction"] != "forward":
        said.append(record["direction"])
    if record["distribution"] not in ("", usual_distribution(record["op"])):
        said.append(record["distribution"])
    if record["streams"] != 1:
        said.append(f"{record['streams']} streams")
    if record.get("mode") == Mode.GRAPH:  # older records have none
        said.append("graph")
    return " ".join(said)


def of_case(case_: Case) -> str:
    """A case of a plan: op, sizes, and what is not the default."""
    return f"{case_.op} {case(case_.fields)}"


def named_case(case_: Case) -> str:
    """A case of a plan, and the id that its log and its records have."""
    return named({**case_.fields, "case_id": case_.id})


def named(record: Mapping[str, Any]) -> str:
    """A case on one line, and the id that its log and the other files have."""
    return f"{record['op']} {case(record)} [{record['case_id']}]"
