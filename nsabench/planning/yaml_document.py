"""Read YAML and remember lines, so that errors can name file, line and field."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from pydantic import BaseModel, ValidationError

from nsabench import limits, reading
from nsabench.errors import UsageError
from nsabench.reading import OutOfBounds

Path_ = tuple[str | int, ...]
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the loader in C is faster
# YAML reads `1:1:1...` as a number to base 60, in a time that grows with the square of its length.
LONG_NUMBER = re.compile(r"[-+0-9_:.]{400,}")


@dataclass(frozen=True)
class Document:
    """A parsed YAML document: plain data, and the line on which each key or item starts."""

    file: str
    data: Any
    lines: dict[Path_, int]
    content: bytes = b""  # the bytes of the whole file

    def where(self, field: Path_) -> str:
        """Return `file:line: field`, with the line of the deepest part that is in the file."""
        listed = field
        while listed and listed not in self.lines:
            listed = listed[:-1]
        return f"{self.file}:{self.lines.get(listed, 1)}: {dotted(field)}"


def dotted(field: Path_) -> str:
    text = ""
    for part in field:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the document"


def read(path: Path) -> list[Document]:
    try:
        data = reading.read(path, limits.MATRIX)
        text = data.decode()
        refuse_nested(text)
        nodes = [n for n in yaml.compose_all(text, Loader=LOADER) if n is not None]
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise UsageError(f"{path} cannot be read: {why}", "check the path.") from None
    except OutOfBounds as error:
        raise UsageError(f"{path} {error}", "write it shorter, and without aliases.") from None
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        problem = getattr(error, "problem", None) or str(error).partition("\n")[0]
        raise UsageError(f"{path}:{line}: not YAML: {problem}", "mend the syntax there.") from None
    documents = []
    for node in nodes:
        lines: dict[Path_, int] = {}
        documents.append(Document(str(path), _plain(node, (), lines, str(path)), lines, data))
    return documents or [Document(str(path), {}, {}, data)]


def refuse_nested(text: str) -> None:
    """Raise `OutOfBounds` for aliases, deep nesting and long numbers, which take long to load."""
    depth = 0
    for event in yaml.parse(text, Loader=LOADER):
        line = event.start_mark.line + 1 if event.start_mark else 1
        if isinstance(event, yaml.AliasEvent):
            raise OutOfBounds(f"has an alias in line {line}")
        depth += isinstance(event, yaml.CollectionStartEvent)
        depth -= isinstance(event, yaml.CollectionEndEvent)
        if depth > limits.DEPTH:
            raise OutOfBounds(f"is nested over {limits.DEPTH} levels deep in line {line}")
        if isinstance(event, yaml.ScalarEvent) and LONG_NUMBER.fullmatch(event.value):
            raise OutOfBounds(f"has a number of {len(event.value)} characters in line {line}")


def _plain(node: yaml.Node, place: Path_, lines: dict[Path_, int], file: str) -> Any:
    lines.setdefault(place, node.start_mark.line + 1)
    if isinstance(node, yaml.SequenceNode):
        return [_plain(item, (*place, i), lines, file) for i, item in enumerate(node.value)]
    if isinstance(node, yaml.MappingNode):
        out: dict[str, Any] = {}
        for key_node, value in node.value:
            key = str(key_node.value)
            line = key_node.start_mark.line + 1
            if key in out:
                raise UsageError(
                    f"{file}:{line}: {dotted((*place, key))} is given twice",
                    "remove one of the two.",
                )
            lines[(*place, key)] = line
            out[key] = _plain(value, (*place, key), lines, file)
        return out
    loader = yaml.SafeLoader("")
    try:
        return loader.construct_object(node, deep=True)
    except (yaml.YAMLError, LookupError, AttributeError, ValueError, OverflowError):
        kind = node.tag.rpartition(":")[2]
        raise UsageError(
            f"{file}:{lines[place]}: {node.value!r} is not a valid {kind}", "mend the value there."
        ) from None


def explain(
    document: Document, error: ValidationError, model: type[BaseModel], place: Path_ = ()
) -> UsageError:
    first = error.errors()[0]
    field = _field(document, place, first["loc"])
    where = document.where(field)
    if first["type"] == "extra_forbidden":
        valid = sorted(_list_keys(model))
        return UsageError(f"{where} is not a known key", nearest(str(first["loc"][-1]), valid))
    if first["type"] == "missing":
        return UsageError(f"{where} is missing", "add it.")
    if first["type"] == "union_tag_invalid":
        context = first["ctx"]
        expected = context["expected_tags"]
        return UsageError(
            f"{where}: {context['tag']!r} is not a {context['discriminator'].strip(chr(39))}",
            f"give one of {expected}.",
        )
    given = first.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool) else ""
    message = first["msg"].removeprefix("Value error, ")
    return UsageError(f"{where}: {message[0].lower()}{message[1:]}{shown}", "correct the value.")


def _field(document: Document, place: Path_, location: tuple[str | int, ...]) -> Path_:
    """Return a location of pydantic as a path in the file, without the tags of unions."""
    field = place
    for part in location[:-1]:
        if (*field, part) in document.lines:
            field = (*field, part)
    last = location[-1:]
    return (*field, *last) if not last or last[0] not in _TAGS else field


_TAGS = frozenset({"int", "str", "float", "bool"})


def nearest(key: str, valid: list[str]) -> str:
    """Return a remedy for an unknown key: the nearest valid one, or all of them."""
    near = difflib.get_close_matches(key, valid, 1)
    return f"did you mean {near[0]!r}?" if near else f"valid keys: {', '.join(sorted(valid))}."


def _list_keys(model: type[BaseModel]) -> set[str]:
    schema = model.model_json_schema()
    models = [schema, *schema.get("$defs", {}).values()]
    return {key for described in models for key in described.get("properties", ())}
