"""Explain any word of the output, from the glossary and from the code that prints it."""

import difflib
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.resources import files

import yaml

from nsabench import checks, ops
from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.evidence.manifest.statement import Trust
from nsabench.model import vocabulary
from nsabench.model.vocabulary import Word
from nsabench.output import grouped
from nsabench.verdicts.tables import COMPARISONS, RECORDS, SAMPLES

VOCABULARIES: dict[str, type[Word]] = {
    "status": vocabulary.Status,
    "verdict": vocabulary.Verdict,
    "regime": vocabulary.Regime,
    "answer of a decision": vocabulary.ThresholdAnswer,
    "whether an op pays": vocabulary.Pays,
    "role": vocabulary.Role,
    "kind of a baseline": vocabulary.Kind,
    "effect of a finding": Effect,
    "trust level": Trust,
    "what became of a control": vocabulary.Catch,
    "difference between two runs": vocabulary.Difference,
    "change of a status between two runs": vocabulary.Change,
    "purpose of a job": vocabulary.Purpose,
    "reference of a ratio": vocabulary.Reference,
}
TABLES = {"records": RECORDS, "comparisons": COMPARISONS, "samples": SAMPLES}


@dataclass(frozen=True)
class Meaning:
    word: str
    kind: str
    text: str


def glossary() -> dict[str, dict[str, str]]:
    """Return the meanings of words by section. A key may hold several words, such as `a, b`."""
    text = files("nsabench.output").joinpath("glossary.yaml").read_text()
    sections: dict[str, dict[str, str]] = yaml.safe_load(text)
    return sections


def meanings(others: Iterable[Meaning] = ()) -> dict[str, list[Meaning]]:
    return grouped([*_list_meanings(), *others], lambda meaning: meaning.word.lower())


def _list_meanings() -> Iterator[Meaning]:
    for kind, words in VOCABULARIES.items():
        yield from (Meaning(word.value, kind, word.meaning) for word in words)
        members = [f"{word.value}: {word.meaning}" for word in words]
        text = "\n".join([inspect.getdoc(words) or "", *members])
        name = re.findall("[A-Z][a-z]+", words.__name__)[-1].lower()  # ThresholdAnswer: answer
        yield Meaning(name, "vocabulary", text)
    for name in (*checks.CHECKS, "controls"):
        yield Meaning(name, "check", checks.describe_check(name))
    mistakes = files("nsabench").joinpath("checker/diagnosis/mistakes.toml").read_text("utf-8")
    for name, text in tomllib.loads(mistakes).items():
        yield Meaning(name, "diagnosis", re.sub(r"\{.*?\}", "…", text))
    sizes: dict[tuple[str, str], list[str]] = {}
    for name in ops.names():
        try:
            op = ops.get(name)
        except UsageError:  # leave out the words of a package that is broken
            continue
        written = sys.modules[type(op).__module__].__doc__ or type(op).__doc__
        written = inspect.cleandoc(written or "Its author wrote nothing about it.")
        yield Meaning(name, "op", f"{written}\n\n{op.shape_model.describe()}".rstrip())
        for size in op.shape_model.model_fields:
            sentences = re.split(r"(?<=\.) ", op.shape_model.describe())
            own = " ".join(s for s in sentences if re.search(rf"\b{size}\b", s))
            sizes.setdefault((size, own or op.shape_model.describe()), []).append(name)
    for (size, text), names in sizes.items():
        yield Meaning(size, "size", f"of {', '.join(names)}: {text}")
    for section in glossary().values():
        for key, text in section.items():
            yield from (Meaning(word, "glossary", text) for word in key.split(", "))
    for table, columns in TABLES.items():
        for column in columns:
            unit = f" [{column.unit}]" if column.unit not in ("", "1") else ""
            text = f"{column.meaning}{unit}"
            yield Meaning(column.name, f"column of {table}.parquet", text)


def explain(word: str, others: Iterable[Meaning] = ()) -> list[Meaning]:
    """Return all meanings of a word. Raises `UsageError` with the nearest known words."""
    known, wanted = meanings(others), word.lower().strip(" ×").lstrip("-")
    for form in (wanted, wanted.removesuffix("s"), wanted.replace("_", " ")):
        if form in known:
            return known[form]
    near = [name for name in known if wanted and wanted in name]
    near = [*dict.fromkeys([*difflib.get_close_matches(wanted, known, 3), *near])][:3]
    raise UsageError(
        f"nsabench has no word {word!r}",
        f"did you mean {' or '.join(near)}?" if near else "`nsabench explain` lists them all.",
    )
