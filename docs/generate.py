"""Writes docs/matrices.md and docs/columns.md from the code. Run it after changing either:

python docs/generate.py
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from nsabench import ops
from nsabench.assessment.columns import RECORDS, SAMPLES, Column
from nsabench.model.case import FixedCount, RatioCI, TimeBudget, Timing, Tolerances
from nsabench.model.vocabulary import Direction, DType
from nsabench.planning.matrix import COMMON_AXES, Matrix, Selection
from nsabench.planning.resolve import shipped_matrices

MADE = "<!-- Made by docs/generate.py from the code: do not edit. -->\n"
HERE = Path(__file__).parent


def matrices() -> str:
    """The reference of the matrix file."""
    return "\n".join(_matrices()) + "\n"


def columns() -> str:
    """The reference of the Parquet files."""
    return "\n".join(_columns()) + "\n"


def _matrices() -> Iterator[str]:
    yield f"{MADE}\n# Matrices\n"
    yield "A matrix is a YAML file that spans cases. `nsabench plan FILE` shows which.\n"
    shipped = shipped_matrices()
    yield f"Those that ship are found by name: {', '.join(f'`{name}`' for name in shipped)}.\n"
    yield f"```yaml\n{shipped['quick'].read_text().rstrip()}\n```\n"
    yield from _model("The file", Matrix)
    yield from _model("`implementations`", Selection)
    yield from _model("`tolerances`", Tolerances)
    yield from _model("`timing`", Timing)
    for kind in (RatioCI, FixedCount, TimeBudget):
        (name,) = get_args(kind.model_fields["kind"].annotation)
        yield from _model(f"`timing.stopping`, kind `{name}`", kind)
    yield "## Axes\n"
    yield "Every op has these; a value may be one or a list.\n"
    values = {
        "dtype": ", ".join(f"`{d}`" for d in DType),
        "direction": ", ".join(f"`{d}`" for d in Direction) + ", as far as the op has them",
        "distribution": "those of the op, below; the first is the default",
        "streams": "calls at once, one a stream; 1 is the default",
    }
    yield "| axis | values |\n|---|---|"
    for axis in COMMON_AXES:
        yield f"| `{axis}` | {values[axis]} |"
    for name in ops.names():
        op = ops.get(name)
        yield f"\n### `{name}`\n"
        yield f"{_doc(op.shape_model)}\n"
        yield f"- sizes: {', '.join(f'`{s}`' for s in op.shape_model.model_fields)}"
        yield f"- directions: {', '.join(f'`{d}`' for d in op.directions)}"
        yield f"- distributions: {', '.join(f'`{d}`' for d in op.distributions)}"
        yield f"- called as `{op.call_form('f')}`"


def _model(title: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## {title}\n"
    yield f"{_doc(model)}\n"
    yield "| key | type | default |\n|---|---|---|"
    schema = model.model_json_schema()
    for key, value in schema["properties"].items():
        required = model.model_fields[key].is_required()
        default = "required" if required else f"`{_default(model, key)}`"
        yield f"| `{key}` | {_type(value, schema.get('$defs', {}))} | {default} |"
    yield ""


def _default(model: type[BaseModel], key: str) -> str:
    default = model.model_fields[key].get_default(call_default_factory=True)
    if isinstance(default, BaseModel):
        default = default.model_dump(mode="json")
    return str(default).replace("|", "\\|")


def _type(schema: dict[str, Any], defined: dict[str, Any]) -> str:
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        return _type(defined[name], defined) if "enum" in defined.get(name, {}) else name
    if "const" in schema:
        return f"`{schema['const']}`"
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return " or ".join(_type(part, defined) for part in schema[several])
    if schema.get("type") == "array":
        return f"list of {_type(schema.get('items', {}), defined)}"
    if schema.get("type") == "object":
        inner = schema.get("additionalProperties")
        return f"mapping to {_type(inner, defined)}" if isinstance(inner, dict) else "mapping"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    said = str(schema.get("type", "anything"))
    return f"{said} > {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else said


def _columns() -> Iterator[str]:
    yield f"{MADE}\n# Columns\n"
    yield (
        "Unit and meaning are also in the Arrow field metadata of the files, and "
        "`nsabench explain COLUMN` prints them. Columns are only ever added; null: it does not "
        "exist, and `reason` says why.\n"
    )
    yield from _table("`records.parquet`: a row a case and implementation", RECORDS)
    yield from _table("`samples.parquet`: a row a timed call", SAMPLES)


def _table(title: str, found: list[Column]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| column | type | unit | meaning |\n|---|---|---|---|"
    for c in found:
        yield f"| `{c.name}` | {c.type} | {c.unit} | {c.meaning.replace('|', chr(92) + '|')} |"
    yield ""


def _doc(model: type) -> str:
    return " ".join((inspect.getdoc(model) or "").split())


if __name__ == "__main__":
    (HERE / "matrices.md").write_text(matrices())
    (HERE / "columns.md").write_text(columns())
