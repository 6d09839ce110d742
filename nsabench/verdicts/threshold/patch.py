"""Patch `runtime.sel_triton_min_L`, and the same by regime, in a user's YAML file.

Only the value is replaced, at its position in the text, so comments, quotes and indentation stay.
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

Lengths = int | Mapping[str, int | None] | None  # a length, one for each GPU, or never


def patch(path: Path, value: Lengths, by_regime: Mapping[str, Lengths] | None = None) -> str:
    """Return a unified diff, which is empty if nothing changes.

    value: for the regime `device`. by_regime: for each regime that was measured; without it the
    file's own is not changed. Raises `UsageError` if the file is not a YAML mapping, or sets a
    field through an alias.
    """
    try:
        # Read as bytes, so that a file keeps its line ends.
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
    # A new field is inserted in front of the others, so the last one comes first.
    for field, wanted in ((BY_REGIME, by_regime), (FIELD, value)):
        if field == BY_REGIME and not by_regime:
            continue
        plain = _to_plain(wanted)
        after = _set_field(after, _parse_root(after), field, _to_text(plain), path)
        expected = {**expected, SECTION: {**(expected.get(SECTION) or {}), field: plain}}
        if yaml.safe_load(after) != expected:
            raise UsageError(
                f"{path} writes {SECTION}.{field} in a way that cannot be patched",
                f"set it by hand to {_to_text(plain)}.",
            )
    return "".join(
        difflib.unified_diff(
            before.splitlines(keepends=True),
            after.splitlines(keepends=True),
            f"a/{path.name}",
            f"b/{path.name}",
        )
    )


def _parse_root(text: str) -> yaml.Node:
    return yaml.compose(text, Loader=yaml.SafeLoader) or yaml.MappingNode(
        "tag:yaml.org,2002:map", []
    )


def _to_plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(name): _to_plain(item) for name, item in value.items()}
    return value


def _to_text(plain: Any) -> str:
    text: str = yaml.safe_dump(plain, default_flow_style=True, width=10_000)
    return text.removesuffix("...\n").strip()


def _set_field(before: str, root: yaml.Node, name: str, text: str, path: Path) -> str:
    if not isinstance(root, yaml.MappingNode) or (root.flow_style and root.value):
        raise UsageError(f"{path} is not a block of fields", f"add {SECTION}.{name}: {text}.")
    newline = "\r\n" if "\r\n" in before else "\n"
    section = _find_value(root, SECTION)
    if section is None:
        gap = "" if not before or before.endswith("\n") else newline
        return f"{before}{gap}{SECTION}:{newline}  {name}: {text}{newline}"
    field = _find_value(section, name) if isinstance(section, yaml.MappingNode) else None
    if field is not None:
        start, end = field.start_mark.index, field.end_mark.index
        # The parser ends a block at the next token, so blanks and comments follow the value.
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


def _find_value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    return next((v for k, v in node.value if k.value == key), None)
