"""What any word in the output means, in the words of the code that prints it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial

from nsabench import ops, registry
from nsabench.assessment import checks
from nsabench.assessment.checks import Effect
from nsabench.assessment.tables import BURSTS, RECORDS, SAMPLES
from nsabench.errors import UsageError
from nsabench.machine.doctor.codes import codes
from nsabench.model.record import Column
from nsabench.model.vocabulary import (
    L2,
    Answer,
    Catch,
    Kind,
    Pays,
    Regime,
    Role,
    Status,
    Verdict,
    Word,
)
from nsabench.output.compare.vocabulary import Change, Difference
from nsabench.output.words import TRUST, WORDS

_CLOSED: tuple[tuple[str, type[Word]], ...] = (
    ("status", Status),
    ("verdict", Verdict),
    ("regime", Regime),
    ("state of the L2", L2),
    ("answer of a decision", Answer),
    ("whether an op pays", Pays),
    ("role", Role),
    ("kind of a baseline", Kind),
    ("effect of a finding", Effect),
    ("what became of a control", Catch),
    ("difference between two runs", Difference),
    ("change of a status between two runs", Change),
)


@dataclass(frozen=True)
class Meaning:
    """One meaning of a word: what kind of word it is, and the text."""

    word: str
    kind: str
    text: str


@cache
def meanings() -> dict[str, list[Meaning]]:
    """Every word that can be explained. A word may mean two things: a status and an effect."""
    listed = [
        Meaning(member.value, kind, member.meaning) for kind, words in _CLOSED for member in words
    ]
    listed += [Meaning(words.__name__.lower(), "vocabulary", _list(words)) for _, words in _CLOSED]
    names = [*checks.all_checks(), "controls"]
    listed += [Meaning(n, "check", _docstring(f"nsabench.assessment.checks.{n}")) for n in names]
    listed += [Meaning(n, "op", _docstring(f"nsabench.ops.{n}")) for n in ops.shipped()]
    listed += [Meaning(w, "word of the output", text) for w, text in WORDS.items()]
    listed += [Meaning(t.value, "trust level", text) for t, text in TRUST.items()]
    for name in ops.shipped():
        shape = ops.get(name).shape_model
        text = f"of {name}: {' '.join((inspect.getdoc(shape) or '').split())}"
        listed += [Meaning(size, "size", text) for size in shape.model_fields]
    listed += [Meaning(code, "problem of a machine", text) for code, text in codes().items()]
    tables = {"records": RECORDS, "samples": SAMPLES, "bursts": BURSTS}
    for table, columns in ((f"{name}.parquet", columns) for name, columns in tables.items()):
        listed += [Meaning(c.name, f"column of {table}", _column(c)) for c in columns]
    by_word: dict[str, list[Meaning]] = {}
    for meaning in listed:
        by_word.setdefault(meaning.word.lower(), []).append(meaning)
    return by_word


def explain(word: str) -> list[Meaning]:
    """All meanings of a word. Raises `UsageError`, naming the nearest words, for an unknown one."""
    words = meanings()
    wanted = word.strip().lower()
    explained = list(words.get(wanted, ()))
    if wanted in ops.names() and wanted not in ops.shipped():
        explained.append(Meaning(wanted, "op", _outside(wanted)))
    if not explained:
        explained = _implementations(wanted)
    if not explained:
        near = difflib.get_close_matches(word.lower(), {*words, *ops.names()}, 3)
        raise UsageError(
            f"{word!r} is no word of nsabench",
            f"did you mean {' or '.join(near)}?" if near else "`nsabench explain` lists them all.",
        )
    return explained


def _implementations(wanted: str) -> list[Meaning]:
    """What those that ship and have this name do. They are imported for that, and not before."""
    found: dict[tuple[str, str], list[str]] = {}
    for item in registry.load():
        if item.name.lower() == wanted:
            found.setdefault((item.role, _sentence(item.call)), []).append(item.op)
    return [
        Meaning(wanted, f"{role} of {', '.join(of)}", text) for (role, text), of in found.items()
    ]


def _sentence(call: Callable[..., object]) -> str:
    """What a function says of itself; what its file does, where it says nothing."""
    while isinstance(call, partial):
        call = call.func
    own = inspect.getdoc(call) if inspect.isfunction(call) else None
    module = sys.modules.get(getattr(call, "__module__", ""))
    return " ".join((own or inspect.getdoc(module) or "").partition("\n\n")[0].split())


def _list(words: type[Word]) -> str:
    return "\n".join([inspect.getdoc(words) or "", *(f"{w.value}: {w.meaning}" for w in words)])


def _docstring(module: str) -> str:
    return inspect.getdoc(importlib.import_module(module)) or ""


def _outside(name: str) -> str:
    """What an op that does not ship says of itself. It is imported for that, and not before."""
    kind = type(ops.get(name))
    return inspect.cleandoc(
        sys.modules[kind.__module__].__doc__ or kind.__doc__ or "Its author wrote nothing about it."
    )


def _column(column: Column) -> str:
    unit = f" [{column.unit}]" if column.unit not in ("", "1") else ""
    return f"{column.meaning}{unit}"
