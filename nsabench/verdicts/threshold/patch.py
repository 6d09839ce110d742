"""A patch that sets runtime.sel_triton_min_L, and the same by regime, in someone's YAML and touches
nothing else in it.

The value is replaced where the parser says that it stands, so comments, quotes and indentation
stay as they are.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from nsabench import limits, reading
from nsabench.errors import UsageError

SECTION, FIELD, BY_REGIME = "runtime", "sel_triton_min_L", "sel_triton_min_L_by_regime"

Lengths = int | Mapping[str, int | None] | None  # a length, one a GPU, or never


def patch(path: Path, value: Lengths, by_regime: Mapping[str, Lengths] | None = None) -> str:
    """A unified diff, empty when nothing changes.

    value: of the regime `device`, for a gate that knows of no other. by_regime: of each that was
    measured; without, the file's own is left as it is.

    Raises `UsageError` when the file is no YAML mapping, or sets a field through an alias.
    """
    try:
        # As bytes: a file with CRLF stays one.
        before = reading.read(path, limits.MATRIX).decode()
        content = yaml.safe_load(before)
    except reading.OutOfBounds as error:
        raise UsageError(f"{path} {error}", "give a plain YAML file.") from None
    except (OSError, ValueError, RecursionError, yaml.YAMLError) as error:
        raise UsageError(
            f"{path} cannot be read as YAML: {str(error).splitlines()[0]}", "give a YAML file."
        ) from None
    after = before
    expected = content if isinstance(content, dict) else {}
    # The last that is set stands first where the file has neither.
    for field, wanted in ((BY_REGIME, by_regime), (FIELD, value)):
        if field == BY_REGIME and not by_regime:
            continue
        plain = _plain(wanted)
        after = _edited(after, _root(after), field, _text(plain), path)
        expected = {**expected, SECTION: {**(expected.get(SECTION) or {}), field: plain}}
        if yaml.safe_load(after) != expected:
            raise UsageError(
                f"{path} writes {SECTION}.{field} in a way that cannot be patched",
                f"set it by hand to {_text(plain)}.",
            )
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{path.name}",
            f"b/{path.name}",
        )
    )


def _root(text: str) -> yaml.Node:
    return yaml.compose(text, Loader=yaml.SafeLoader) or yaml.MappingNode(
        "tag:yaml.org,2002:map", []
    )


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _plain(one) for name, one in value.items()}
    return value


def _text(plain: Any) -> str:
    text: str = yaml.safe_dump(plain, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _edited(before: str, root: yaml.Node, name: str, text: str, path: Path) -> str:
    if not isinstance(root, yaml.MappingNode) or (root.flow_style and root.value):
        raise UsageError(f"{path} is not a block of fields", f"add {SECTION}.{name}: {text}.")
    newline = "\r\n" if "\r\n" in before else "\n"
    section = _value(root, SECTION)
    if section is None:
        gap = "" if not before or before.endswith("\n") else newline
        return f"{before}{gap}{SECTION}:{newline}  {name}: {text}{newline}"
    field = _value(section, name) if isinstance(section, yaml.MappingNode) else None
    if field is not None:
        start, end = field.start_mark.index, field.end_mark.index
        # A block ends where the next token begins; what stands in between is not its own.
        end = start + len(before[start:end].rstrip())
        gap = " " if before[start - 1] == ":" else ""
        return before[:start] + gap + text + before[end:]
    if isinstance(section, yaml.MappingNode) and section.value:
        first = section.value[0][0].start_mark
        if section.flow_style:
            return f"{before[: first.index]}{name}: {text}, {before[first.index :]}"
        line = f"{name}: {text}{newline}{' ' * first.column}"
        return before[: first.index] + line + before[first.index :]
    raise UsageError(f"{path}: {SECTION} holds no fields", f"add {name}: {text} by hand.")


def _value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((v for k, v in node.value if k.value == key), None)
