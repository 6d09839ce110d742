"""Write docs/reference from the code, and the figures of docs/results from the archive.

python docs/generate.py
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import json
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from string import ascii_lowercase
from types import ModuleType
from typing import Any, get_args

import click
import yaml
from pydantic import BaseModel

from nsabench import ops
from nsabench.cli import group
from nsabench.model.case import FixedCount, RatioCI, Timing, Tolerances
from nsabench.model.record import Column
from nsabench.model.vocabulary import Direction, DType
from nsabench.output import explain, programs
from nsabench.planning.matrix import COMMON_AXES, ImplementationFilter, Matrix
from nsabench.planning.resolve import shipped_matrices
from nsabench.running.folder import NAMES
from nsabench.verdicts.tables import ARROW, COMPARISONS, RECORDS, SAMPLES

MADE = "<!-- Made by docs/generate.py from the code: do not edit. -->\n"
HERE = Path(__file__).parent
MEANINGS = yaml.safe_load((HERE / "reference.yaml").read_text())
# The public modules and their names.
API = {
    "nsabench": ("implementation", "Unsupported", "KernelVariant"),
    "nsabench.registry": ("control", "Honest", "Package"),
    "nsabench.ops": ("Op", "Shape", "Size", "Inputs", "Work", "Probe"),
    "nsa_kernels": (),  # all names in `__all__`
    "nsa_kernels.cuda": ("selection_rows", "selection_ranges", "Unsupported"),
    "nsa_kernels.integrations.transformers": ("register", "add_gates"),
    "nsa_kernels.integrations.fla": ("parallel_nsa",),
}
SECTION = re.compile(r"(Args|Attributes|Returns|Raises):")
EXIT_CODES = {
    0: "fine",
    1: "the run is complete and something in it failed",
    2: "bad input; the message names file, line and field",
    3: "this machine cannot; the message says why",
    4: "verification failed",
    5: "no candidate was tried",
    130: "interrupted; `all --resume RUN` goes on",
}


def matrices() -> str:
    """Return the page on matrices."""
    return "\n".join(_matrices()) + "\n"


def commands() -> str:
    """Return the page on the command line."""
    return "\n".join(_commands()) + "\n"


def columns() -> str:
    """Return the page on the columns of Parquet files."""
    return "\n".join(_columns()) + "\n"


def json_schema() -> str:
    """Return the schema of what commands print with --json."""
    return json.dumps(programs.schema(), indent=1) + "\n"


def glossary() -> str:
    """Return the page on the words of nsabench."""
    return "\n".join(_glossary()) + "\n"


def library() -> str:
    """Return the page on the dtypes and conditions that nsa_kernels takes."""
    return "\n".join(_library()) + "\n"


def python() -> str:
    """Return the page on what Python code imports."""
    return "\n".join(_python()) + "\n"


def environment() -> str:
    """Return the page on environment variables."""
    return "\n".join(_environment()) + "\n"


def files() -> str:
    """Return the page on the files and folders that nsabench writes."""
    return "\n".join(_files()) + "\n"


def _python() -> Iterator[str]:
    yield f"{MADE}\n# Python API\n"
    yield _wrapped(
        "Names that are not on this page may change without notice. [What nsa_kernels "
        "takes](library.md) says which dtype and condition each call supports. [The README of the "
        "kernels](../../kernels/README.md) has an example of each.\n"
    )
    for name, listed in API.items():
        module = importlib.import_module(name)
        yield f"## {name}\n"
        for member in listed or module.__all__:
            yield from _member(f"{name}.{member}", getattr(module, member))


def _member(name: str, value: Any) -> Iterator[str]:
    yield f"### `{name}`\n"
    is_class = inspect.isclass(value)
    if callable(value) and not (is_class and issubclass(value, ops.Op | BaseException)):
        yield f"```python\n{_signature(value.__name__, value)}\n```\n"
    text = inspect.getdoc(value) or ""
    if (is_class or inspect.isfunction(value)) and not text.startswith(f"{name.split('.')[-1]}("):
        yield from _docstring(text)
    elif isinstance(value, dict):
        yield "| key | meaning |\n|---|---|"
        yield from (f"| `{key}` | {meaning} |" for key, meaning in value.items())
        yield ""
    for method, call in vars(value).items() if is_class else ():
        text = inspect.getdoc(call) or "" if inspect.isroutine(call) else ""
        if text and not method.startswith("_"):
            yield f"#### `{name}.{method}`\n"
            yield f"```python\n{_signature(method, getattr(value, method))}\n```\n"
            yield from _docstring(text)


def _signature(name: str, call: Any) -> str:
    """Return the signature of a call, on one line if it fits."""
    signature = inspect.signature(call)
    written, kinds = [], {p.kind for p in signature.parameters.values()}
    for parameter in signature.parameters.values():
        if parameter.kind is parameter.KEYWORD_ONLY and parameter.VAR_POSITIONAL not in kinds:
            written.append("*")
            kinds.add(parameter.VAR_POSITIONAL)
        annotation = parameter.annotation
        bare = parameter.replace(annotation=parameter.empty, default=parameter.empty)
        text = str(bare) + (f": {annotation}" if annotation is not parameter.empty else "")
        default = parameter.default
        shown = f'"{default}"' if isinstance(default, str) else repr(default)
        written.append(text if default is parameter.empty else f"{text} = {shown}")
    result = signature.return_annotation
    end = ")" if result in (signature.empty, None, "None") else f") -> {result}"
    line = f"{name}({', '.join(written)}{end}"
    if len(line) <= 88:
        return line
    return "\n".join([f"{name}(", *(f"    {part}," for part in written), end])


def _docstring(text: str) -> Iterator[str]:
    """Yield a docstring as Markdown, with its sections as lists."""
    section = ""
    for paragraph in re.sub(r"``", "`", text).split("\n\n"):
        lines = paragraph.splitlines()
        if lines and (title := SECTION.fullmatch(lines[0])):
            section = title[1]
            yield f"**{section}:**\n"
            lines = textwrap.dedent("\n".join(lines[1:])).splitlines()
        items: list[str] = []
        for line in lines:
            if not items or re.match(r"\w[\w, ]*( \(.*?\))?: |- ", line) or line == "":
                items.append(line)
            else:
                items[-1] += " " + line.strip()
        before = "- "
        for item in items:
            words, colon, meaning = item.partition(": ")
            named = re.fullmatch(r"(\w+(?:, \w+)*)( \(.*\))?", words) if colon else None
            if named and section != "Returns":
                item = f"- `{named[1]}`{named[2] or ''}: {meaning}"
            if item.startswith("- ") and not before.startswith("- "):
                yield ""  # else Markdown would join the list to the paragraph
            yield _wrapped(item)
            before = item
        yield ""


def _environment() -> Iterator[str]:
    yield f"{MADE}\n# Environment variables\n"
    yield "All variables that nsabench and nsa_kernels read or set.\n"
    for title, variables in MEANINGS["environment"].items():
        yield f"## {title}\n\n| variable | meaning |\n|---|---|"
        yield from (f"| `{name}` | {meaning} |" for name, meaning in variables.items())
        yield ""


def _files() -> Iterator[str]:
    yield f"{MADE}\n# Files and folders\n"
    yield "## A run\n"
    yield _wrapped(
        "`nsabench all --out FOLDER` writes a run to FOLDER, or to `results/RUN_ID`. The link "
        "`results/latest` leads to the run that was begun last.\n"
    )
    yield "| file | holds |\n|---|---|"
    for name in NAMES:
        yield f"| `{name}` | {MEANINGS['files'][name]} |"
    yield "| `logs/CASE.log`, `logs/CASE.PASS.log` | the output of the kernels of a case |"
    yield "| `shards/RUN_ID/` | of a merged run: plan, log, environment and manifest of a shard |"
    yield "\n## Other folders\n"
    rows = MEANINGS["folders"]
    yield f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}"
    yield from (f"| {' | '.join(row.values())} |" for row in rows)
    yield "\nnsabench writes nowhere else."


def _conformance() -> ModuleType:
    """Return the module with the table that the kernels' tests check. It imports no torch."""
    path = HERE.parent / "kernels" / "tests" / "conformance.py"
    spec = importlib.util.spec_from_file_location("conformance", path)
    assert spec and spec.loader
    module = sys.modules["conformance"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _library() -> Iterator[str]:
    table = _conformance()
    yield f"{MADE}\n# What nsa_kernels takes\n"
    yield _wrapped(
        "Each public call under each dtype and condition either works, which is `+`, or refuses, "
        "which is the number of a sentence below. What works gives what the formula gives in "
        "float64, within the rounding of its dtype. `kernels/tests/test_conformance.py` walks the "
        "table: all of it on a GPU; without one, in Triton's interpreter, float32 and float64, and "
        "of float16 and bfloat16 what is plain, under autocast or differentiated. What each call "
        "computes is in [the README of the kernels](../../kernels/README.md).\n"
    )
    yield "## Conditions\n"
    yield "| | condition | meaning |\n|---|---|---|"
    for letter, (name, meaning) in zip(ascii_lowercase, table.CONDITIONS.items(), strict=False):
        yield f"| {letter} | {name} | {meaning} |"
    yield "\n## Calls\n"
    yield "dtypes whose rows would be equal share one.\n"
    letters = ascii_lowercase[: len(table.CONDITIONS)]
    yield f"| call | dtype | {' | '.join(letters)} |\n|---|---|{'---|' * len(letters)}"
    numbers: dict[Any, int] = {}
    for call in table.CALLS:
        rows: dict[tuple[str, ...], list[str]] = {}
        for dtype in table.DTYPES:
            found = [table.refusal(call, dtype, condition) for condition in table.CONDITIONS]
            row = (
                "+" if x is None else str(numbers.setdefault(x, len(numbers) + 1)) for x in found
            )
            rows.setdefault(tuple(row), []).append(dtype.replace("float", "f"))
        for cells, dtypes in rows.items():
            yield f"| {call} | {', '.join(dtypes)} | {' | '.join(cells)} |"
    yield "\n## Sentences\n"
    yield _wrapped(
        "`…` stands for what differs from call to call, and `op` for the name of the call, or of "
        "the one that it makes.\n"
    )
    for one, number in numbers.items():
        sentence = one.sentence.replace("{op}", "op").replace("{call}", "op")
        yield _wrapped(f"{number}. `{one.error}`: {sentence}")


def _matrices() -> Iterator[str]:
    yield f"{MADE}\n# Matrices\n"
    yield "A matrix is a YAML file that spans cases. `nsabench plan FILE` shows which.\n"
    yield _wrapped("How to write one, by example: [Write a matrix](../how-to/write-a-matrix.md).\n")
    shipped = shipped_matrices()
    names = ", ".join(f"`{name}`" for name in shipped)
    yield _wrapped(f"Those that ship are found by name: {names}.\n")
    yield "This is `quick`:\n"
    yield f"```yaml\n{shipped['quick'].read_text().rstrip()}\n```\n"
    yield from _model("The file", Matrix)
    yield from _model("`implementations`", ImplementationFilter)
    yield from _model("`tolerances`", Tolerances)
    yield from _model("`timing`", Timing)
    for kind in (RatioCI, FixedCount):
        (name,) = get_args(kind.model_fields["kind"].annotation)
        yield from _model(f"`timing.stopping`, kind `{name}`", kind)
    yield "## Axes\n"
    yield "Every op has these; a value may be one or a list.\n"
    values = {
        "dtype": ", ".join(f"`{d}`" for d in DType),
        "direction": ", ".join(f"`{d}`" for d in Direction) + ", as far as the op has them",
        "distribution": "those of the op, below; the first is the default",
    }
    yield "| axis | values |\n|---|---|"
    for axis in COMMON_AXES:
        yield f"| `{axis}` | {values[axis]} |"
    for name in ops.shipped():
        op = ops.get(name)
        yield f"\n### `{name}`\n"
        for paragraph in explain.explain(name)[0].text.removeprefix(f"{name}: ").split("\n\n"):
            text = " ".join(paragraph.split()).replace("*", r"\*")
            yield _wrapped(f"{text[0].upper()}{text[1:]}\n" if text[1:2] != " " else f"{text}\n")
        yield _wrapped(f"- sizes: {', '.join(_sizes(op.shape_model))}")
        yield _wrapped(f"- directions: {', '.join(f'`{d}`' for d in op.directions)}")
        yield _wrapped(f"- distributions: {', '.join(f'`{d}`' for d in op.distributions)}")
        yield f"- called as:\n\n```python\n{op.call_form('f')}\n```"


def _sizes(model: type[BaseModel]) -> Iterator[str]:
    for size, field in model.model_fields.items():
        yield f"`{size}`" if field.is_required() else f"`{size}` (default {field.default})"


def _model(title: str, model: type[BaseModel]) -> Iterator[str]:
    yield f"## {title}\n"
    yield _wrapped(f"{_doc(model)}\n")
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
    kind = str(schema.get("type", "anything"))
    return f"{kind} > {schema['exclusiveMinimum']}" if "exclusiveMinimum" in schema else kind


def _columns() -> Iterator[str]:
    yield f"{MADE}\n# Columns\n"
    yield _wrapped(
        "Unit and meaning are also in the Arrow field metadata of the files, and "
        "`nsabench explain COLUMN` prints them. Columns are only ever added. Where a value is null "
        "it does not exist, and `reason` says why. The columns are the fields of classes in "
        "`nsabench/model/record.py`.\n"
    )
    yield from _table("`records.parquet`: a row a case and implementation", RECORDS)
    compared = "`comparisons.parquet`: a row a case, implementation, regime and reference"
    yield from _table(compared, COMPARISONS)
    yield from _table("`samples.parquet`: a row a timed call", SAMPLES)
    yield "## `runs`, a view of `archive query`: a row a run\n"
    yield _wrapped(
        "A shard has no row, and is in no other view, if a merged run of the archive holds its "
        "measurements.\n"
    )
    yield "| column | meaning |\n|---|---|"
    yield from (f"| `{name}` | {meaning} |" for name, meaning in MEANINGS["runs"].items())


def _table(title: str, found: list[Column]) -> Iterator[str]:
    yield f"## {title}\n"
    yield "| column | type | unit | meaning |\n|---|---|---|---|"
    for c in found:
        meaning = c.meaning.replace("|", "\\|")
        yield f"| `{c.name}` | {ARROW[c.type]} | {c.unit} | {meaning} |"
    yield ""


def _glossary() -> Iterator[str]:
    yield f"{MADE}\n# Glossary\n"
    yield _wrapped(
        "The words of nsabench, in code, columns, help and pages. `nsabench explain WORD` prints "
        "the meaning of each, of every column and option, and of the sizes of every op.\n"
    )
    for title, words in explain.glossary().items():
        yield from _list_words(title, words)
    for kind, vocabulary in explain.VOCABULARIES.items():
        title = f"{kind[0].upper()}{kind[1:]}"
        yield from _list_words(title, {word.value: word.meaning for word in vocabulary})


def _list_words(title: str, words: dict[str, str]) -> Iterator[str]:
    yield f"## {title}\n\n| word | meaning |\n|---|---|"
    for word, meaning in words.items():
        yield f"| **{word}** | {meaning} |"
    yield ""


def _commands() -> Iterator[str]:
    yield f"{MADE}\n# Commands\n"
    yield "Every command prints this with `--help`. Errors are one sentence and a remedy.\n"
    leaves = list(_leaves(group))
    yield "| command | does |\n|---|---|"
    for name, command in leaves:
        yield f"| [`nsabench {name}`](#nsabench-{name.replace(' ', '-')}) | {_summary(command)} |"
    yield "\n## Exit codes\n\n| code | means |\n|---|---|"
    for code, meaning in EXIT_CODES.items():
        yield f"| {code} | {meaning} |"
    for name, command in leaves:
        yield from _command(name, command)


def _leaves(group: click.Group, prefix: str = "") -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from _leaves(command, f"{prefix}{name} ")
        else:
            yield f"{prefix}{name}", command


def _summary(command: click.Command) -> str:
    return " ".join((command.help or "").partition("\n\n")[0].split())


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=f"nsabench {name}")
    yield f"\n## nsabench {name}\n"
    yield f"    {context.command_path} {' '.join(command.collect_usage_pieces(context))}\n"
    for paragraph in (command.help or "").split("\n\n"):
        text = " ".join(paragraph.split())
        label, _, example = text.partition("Example: ")
        yield f"Example:\n\n    {example}\n" if not label else _wrapped(f"{text}\n")
    if any(isinstance(parameter, click.Option) for parameter in command.params):
        yield "| option | does |\n|---|---|"
    for parameter in command.params:
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record:
            option, does = (" ".join(part.replace("|", "\\|").split()) for part in record)
            yield f"| `{option}` | {does} |"


def _wrapped(text: str) -> str:
    """Return a paragraph in lines of at most 100 columns. Words are not broken."""
    lines = textwrap.wrap(
        text, 100, subsequent_indent="  " * text.startswith("- "),
        break_long_words=False, break_on_hyphens=False,
    )  # fmt: skip
    return "\n".join(lines) + "\n" * text.endswith("\n")


def _doc(model: type) -> str:
    return " ".join((inspect.getdoc(model) or "").split())


PAGES = {
    "matrices": matrices,
    "columns": columns,
    "commands": commands,
    "glossary": glossary,
    "library": library,
    "python": python,
    "environment": environment,
    "files": files,
}

if __name__ == "__main__":
    import published

    for page, text in PAGES.items():
        (HERE / "reference" / f"{page}.md").write_text(text())
    (HERE / "reference" / "json.schema.json").write_text(json_schema())
    published.fill_pages()
