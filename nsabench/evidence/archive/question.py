"""A question to an archive: one SELECT over its views, and over nothing else.

DuckDB itself refuses files, settings and extensions; this refuses what it would still answer from:
its own catalogue, its settings, and functions that read a text as SQL.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from typing import Any

import duckdb

from nsabench.errors import UsageError

VIEWS = frozenset({"runs", "records", "samples", "bursts", "pays"})
MOST_CHARACTERS = 100_000
_TABLE_FUNCTIONS = frozenset({"range", "generate_series", "unnest"})
_REFUSED = frozenset(
    {"current_setting", "getenv", "getvariable", "json_serialize_plan", "write_log"}
)
_REMEDY = "it may select from runs, records, samples, bursts and pays, in DuckDB's SQL."


def views_of(sql: str) -> frozenset[str]:
    """The views that the question reads. Raises `UsageError` when it is none, or reads more."""
    if len(sql) > MOST_CHARACTERS:
        raise UsageError(f"the query has more than {MOST_CHARACTERS} characters", "ask for less.")
    try:
        nodes = list(_nodes(_parsed(sql)))
    except RecursionError:
        raise UsageError("the query is nested too deeply", "write it flatter.") from None
    own = {
        str(entry["key"]).lower()
        for node in nodes
        if isinstance(named := node.get("cte_map"), dict)
        for entry in named.get("map", [])
    }
    for called in sorted(own & _catalogue()):
        # Where that name does not count, the catalogue's would.
        raise UsageError(
            f"the query cannot be answered: it calls a part of itself {called!r}",
            "call it otherwise.",
        )
    read = {name for node in nodes if (name := _table(node)) not in (None, *own)}
    for name in sorted(map(str, read - VIEWS)):
        raise UsageError(f"the query cannot be answered: it reads {name!r}", _REMEDY)
    for node in nodes:
        _refuse_function(node)
    return frozenset(name for name in read if name is not None)


def _parsed(sql: str) -> Any:
    with duckdb.connect() as connection:
        try:
            kinds = [statement.type for statement in connection.extract_statements(sql)]
            if kinds != [duckdb.StatementType.SELECT]:
                raise UsageError("that is no question", "ask with one SELECT.")
            [[text]] = connection.execute("SELECT json_serialize_sql(?)", [sql]).fetchall()
        except duckdb.Error as error:
            sentence = " ".join(str(error).split())[:300]
            raise UsageError(f"the query cannot be answered: {sentence}", _REMEDY) from None
    tree = json.loads(text)
    if tree.get("error"):
        sentence = str(tree.get("error_message", ""))[:300]
        raise UsageError(f"the query cannot be answered: {sentence}", _REMEDY)
    return tree


@cache
def _catalogue() -> frozenset[str]:
    """What DuckDB has views of by itself."""
    with duckdb.connect() as connection:
        rows = connection.execute("SELECT DISTINCT view_name FROM duckdb_views()").fetchall()
    return frozenset(name.lower() for (name,) in rows)


def _nodes(tree: Any) -> Iterator[dict[str, Any]]:
    left = [tree]
    while left:
        node = left.pop()
        if isinstance(node, dict):
            yield node
            left += node.values()
        elif isinstance(node, list):
            left += node


def _table(node: dict[str, Any]) -> str | None:
    """The table that a node names, as written where it is none of the views."""
    if node.get("type") == "SHOW_REF" and node.get("query") is not None:
        return None  # of a question, which is a node of its own
    if node.get("type") not in ("BASE_TABLE", "SHOW_REF"):
        return None
    path = [str(node.get(part) or "") for part in ("catalog_name", "schema_name", "table_name")]
    if path[:2] in (["", ""], ["", "main"]):
        return path[2].lower()
    return ".".join(part for part in path if part)


def _refuse_function(node: dict[str, Any]) -> None:
    function = node.get("function")
    if node.get("type") == "TABLE_FUNCTION" and isinstance(function, dict):
        name = str(function.get("function_name")).lower()
        if name not in _TABLE_FUNCTIONS:
            raise UsageError(f"the query cannot be answered: it calls {name!r}", _REMEDY)
    name = str(node.get("function_name", "")).lower()
    if name in _REFUSED:
        raise UsageError(f"the query cannot be answered: it calls {name!r}", _REMEDY)
