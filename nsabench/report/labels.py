"""How a case is called where people read: sizes without the length, and what is not the default."""

from __future__ import annotations

from typing import Any

from nsabench import ops

SHORT = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32"}


def sizes(record: dict[str, Any]) -> list[str]:
    """The names of the sizes of the record's op."""
    return list(ops.get(record["op"]).shape_model.model_fields)


def shape(record: dict[str, Any], *, length: bool = False) -> str:
    """`N1024 H8 D128`: Dv only where it differs from D, L only if asked for."""
    said = []
    for size in sizes(record):
        value = record.get(size)
        if value is None or (size == "L" and not length):
            continue
        if size == "Dv" and value == record.get("D"):
            continue
        said.append(f"{size}{value}")
    return " ".join(said)


def case(record: dict[str, Any]) -> str:
    """A case on one line, with everything that tells it from its neighbours."""
    said = [shape(record, length=True), SHORT.get(record["dtype"], record["dtype"])]
    if record["direction"] != "forward":
        said.append(record["direction"])
    if record["distribution"] != ops.get(record["op"]).distributions[0]:
        said.append(record["distribution"])
    if record["streams"] != 1:
        said.append(f"{record['streams']} streams")
    return " ".join(said)
