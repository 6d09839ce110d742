"""Explains any word of the output, by the docstrings of the code that prints it."""

from __future__ import annotations

import difflib
import importlib
import inspect
import sys
from collections.abc import Iterator
from dataclasses import dataclass

from nsabench import checks, ops
from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.evidence.manifest.statement import Trust
from nsabench.model import vocabulary
from nsabench.model.vocabulary import NO_SPECIALISED, Word
from nsabench.output import grouped
from nsabench.verdicts.tables import COMPARISONS, RECORDS, SAMPLES

VOCABULARIES: dict[str, type[Word]] = {
    "status": vocabulary.Status,
    "verdict": vocabulary.Verdict,
    "regime": vocabulary.Regime,
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


def meanings() -> dict[str, list[Meaning]]:
    return grouped(_list_meanings(), lambda meaning: meaning.word.lower())


def _list_meanings() -> Iterator[Meaning]:
    for kind, words in VOCABULARIES.items():
        yield from (Meaning(word.value, kind, word.meaning) for word in words)
    for words in VOCABULARIES.values():
        members = [f"{word.value}: {word.meaning}" for word in words]
        text = "\n".join([inspect.getdoc(words) or "", *members])
        yield Meaning(words.__name__.lower(), "vocabulary", text)
    for name in (*checks.all_checks(), "controls"):
        yield Meaning(name, "check", _read_docstring(f"nsabench.checks.{name}"))
    for name in ops.names():
        try:
            op = ops.get(name)
        except UsageError:  # other words are explained without a package that is broken
            continue
        written = sys.modules[type(op).__module__].__doc__ or type(op).__doc__
        yield Meaning(name, "op", inspect.cleandoc(written or "Its author wrote nothing about it."))
        sizes = f"of {name}: {op.shape_model.describe()}"
        yield from (Meaning(size, "size", sizes) for size in op.shape_model.model_fields)
    yield from (Meaning(word, "word of the output", text) for word, text in WORDS.items())
    for table, columns in TABLES.items():
        for column in columns:
            unit = f" [{column.unit}]" if column.unit not in ("", "1") else ""
            text = f"{column.meaning}{unit}"
            yield Meaning(column.name, f"column of {table}.parquet", text)


def explain(word: str) -> list[Meaning]:
    """Return all meanings of a word. Raises `UsageError` with the nearest words if it is
    unknown."""
    known, wanted = meanings(), word.strip().lower()
    if wanted not in known:
        near = difflib.get_close_matches(wanted, known, 3)
        raise UsageError(
            f"nsabench has no word {word!r}",
            f"did you mean {' or '.join(near)}?" if near else "`nsabench explain` lists them all.",
        )
    return known[wanted]


def _read_docstring(module: str) -> str:
    return inspect.getdoc(importlib.import_module(module)) or ""


WORDS = {
    "op": "a contract: how inputs are made, the float64 oracle, and the work (bytes and FLOPs)",
    "case": "one op at one shape, dtype, direction, distribution and mode",
    "cases": "how many cases a decision rests on",
    "implementation": "code that fulfils an op: a candidate, a baseline or a control",
    "oracle": "the op computed in float64 from the same quantised inputs: what is right",
    "floor": "the least time that the compulsory bytes and FLOPs of a case take at the ceilings",
    "of roofline": "how near a time is to the floor, as a share: at 100 % nothing could be faster",
    "ceilings": "what the device can do at most, measured in the run: bandwidth, rate of products",
    "harness": "all of a run that is not measuring: starting processes, drawing inputs, oracles",
    "pays": "from which length on, in every tested case, an op by its best valid implementation is "
    "faster than the best valid alternative: a length, at no length, or not decided",
    "margin": "how many times as fast as the best valid baseline is worth it: 1.2, or `--margin`",
    "ratio": "the median time of the best valid baseline over that of the candidate: speed-up",
    "speed-up": "the median time of the best valid baseline over that of the candidate",
    "speedup_lo": "the lower end of the 95 % interval of the speed-up",
    "baseline ms": "the median time of the best valid baseline",
    "outcome": "the verdict of each regime, or the status of what is not ok",
    "best baseline": "the fastest baseline of a case that is right and was measured beside it",
    "queued": "the time of a call among others, one behind the other, from Python",
    "host µs": "how long a call holds the CPU",
    "ms": "the median time of a call on the device, L2 flushed before it",
    "failed": "implementations that are wrong, crash, or are otherwise not ok, without a reason of "
    "their own to decline",
    "complete": "every planned case was measured, and nothing failed",
    "decision": "from which length on a candidate is worth using, or why there is none",
    "step": "a direction: a forward with what its backward needs, and that backward",
    "threshold": "the smallest tested length from which on every tested case passes the margin",
    "runtime": "what a gate loads from `thresholds.yaml`",
    "sel_triton_min_L": "the selected length from which on a gate uses the kernel; null: never",
    "decisions": "one of each candidate, op and GPU",
    NO_SPECIALISED: "the ratio is over 3, and all baselines that were timed beside it are masks, "
    "gathers or FlexAttention: it says what those cost, and not what a kernel for it gains",
    "library": "what an implementation calls, with its version or commit and its licence",
    "combo": "the versions of torch, Triton and CUDA",
    "own": "of the user's own file",
    "sel_triton_min_L_by_regime": "the same in each regime that was measured, by GPU: a gate takes "
    "`queue` for calls from Python, `graph` or else `device` for what is captured or compiled",
    "gate": "whether `runtime.sel_triton_min_L` goes by this decision",
    "where": "the conditions that all its cases meet: a decision is for no others",
    "axis": "the size that lengths are of, such as L or S",
    "min_L": "the length from which on the candidate is worth using; null: none",
    "reasons": "why nothing is decided, or why it is no",
    "caveats": "checks behind a decision that were not shown to work; they stop nothing",
    "decided_by": "the case that keeps shorter lengths from being worth it",
    "why": "what is said of a case beside its status or verdict",
    "outcomes": "how often an implementation had which status",
    "best of": "in how many cases a baseline was the best valid one",
    "example": "one reason among those of an implementation",
    "alongside": "a baseline that runs for a control that wraps it; no candidate is held to it",
    "right": "its output is the op's in every case where it ran",
    "unpaired": "this torch pins another Triton than the one of the run",
}
