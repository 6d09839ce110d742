"""What any word in the output means, in the words of the code that prints it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache, partial

from nsabench import checks, ops, registry
from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.evidence.manifest.statement import Trust
from nsabench.machine.doctor.codes import codes
from nsabench.model import vocabulary
from nsabench.model.vocabulary import Word
from nsabench.output import grouped
from nsabench.output.words import WORDS
from nsabench.verdicts.tables import COMPARISONS, RECORDS, SAMPLES

VOCABULARIES: dict[str, type[Word]] = {
    "status": vocabulary.Status,
    "verdict": vocabulary.Verdict,
    "regime": vocabulary.Regime,
    "state of the L2": vocabulary.L2,
    "answer of a decision": vocabulary.Answer,
    "whether an op pays": vocabulary.Pays,
    "role": vocabulary.Role,
    "kind of a baseline": vocabulary.Kind,
    "effect of a finding": Effect,
    "trust level": Trust,
    "what became of a control": vocabulary.Catch,
    "difference between two runs": vocabulary.Difference,
    "change of a status between two runs": vocabulary.Change,
}
TABLES = {"records": RECORDS, "comparisons": COMPARISONS, "samples": SAMPLES}


@dataclass(frozen=True)
class Meaning:
    word: str
    kind: str
    text: str


@cache
def meanings() -> dict[str, list[Meaning]]:
    return grouped(_meanings(), lambda meaning: meaning.word.lower())


def _meanings() -> Iterator[Meaning]:
    for kind, words in VOCABULARIES.items():
        yield from (Meaning(word.value, kind, word.meaning) for word in words)
    for words in VOCABULARIES.values():
        members = [f"{word.value}: {word.meaning}" for word in words]
        text = "\n".join([inspect.getdoc(words) or "", *members])
        yield Meaning(words.__name__.lower(), "vocabulary", text)
    for name in (*checks.all_checks(), "controls"):
        yield Meaning(name, "check", _docstring(f"nsabench.checks.{name}"))
    for name in ops.shipped():
        yield Meaning(name, "op", _docstring(f"nsabench.ops.{name}"))
    yield from (Meaning(word, "word of the output", text) for word, text in WORDS.items())
    for name in ops.shipped():
        shape = ops.get(name).shape_model
        text = f"of {name}: {' '.join((inspect.getdoc(shape) or '').split())}"
        yield from (Meaning(size, "size", text) for size in shape.model_fields)
    yield from (Meaning(code, "problem of a machine", text) for code, text in codes().items())
    for table, columns in TABLES.items():
        for column in columns:
            unit = f" [{column.unit}]" if column.unit not in ("", "1") else ""
            text = f"{column.meaning}{unit}"
            yield Meaning(column.name, f"column of {table}.parquet", text)


def explain(word: str) -> list[Meaning]:
    """Return all meanings of a word. Raises `UsageError`, naming the nearest words, if unknown."""
    known, wanted = meanings(), word.strip().lower()
    explained = list(known.get(wanted, ()))
    if wanted in ops.names() and wanted not in ops.shipped():
        explained.append(_op_from_outside(wanted))
    explained = explained or _implementations(wanted)
    if not explained:
        near = difflib.get_close_matches(word.lower(), {*known, *ops.names()}, 3)
        raise UsageError(
            f"{word!r} is no word of nsabench",
            f"did you mean {' or '.join(near)}?" if near else "`nsabench explain` lists them all.",
        )
    return explained


def _op_from_outside(name: str) -> Meaning:
    kind = type(ops.get(name))
    text = sys.modules[kind.__module__].__doc__ or kind.__doc__
    return Meaning(name, "op", inspect.cleandoc(text or "Its author wrote nothing about it."))


def _implementations(wanted: str) -> list[Meaning]:
    """What the implementations of this name do. They are imported for that, and not before."""
    named = [item for item in registry.load() if item.name.lower() == wanted]
    return [
        Meaning(wanted, f"{role} of {', '.join(item.op for item in items)}", text)
        for (role, text), items in grouped(named, lambda i: (i.role, _sentence(i.call))).items()
    ]


def _sentence(call: Callable[..., object]) -> str:
    """What a function says of itself, or else what its file says."""
    while isinstance(call, partial):
        call = call.func
    own = inspect.getdoc(call) if inspect.isfunction(call) else None
    module = sys.modules.get(getattr(call, "__module__", ""))
    return " ".join((own or inspect.getdoc(module) or "").partition("\n\n")[0].split())


def _docstring(module: str) -> str:
    return inspect.getdoc(importlib.import_module(module)) or ""
