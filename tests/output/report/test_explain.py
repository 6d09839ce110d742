"""Every word that the output uses can be explained, and by nothing but the code itself."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from nsabench import checks, ops
from nsabench.checks import Effect
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Catch, Role, Status, Verdict
from nsabench.output import tables
from nsabench.output.explain import explain, meanings
from nsabench.output.report import Facts
from nsabench.verdicts.tables import COMPARISONS, RECORDS, SAMPLES
from nsabench.verdicts.threshold import decide_run
from nsabench.verdicts.threshold.document import as_data
from tests.runs import make_run

GPUS = {"NVIDIA H200"}


def test_every_word_has_a_meaning() -> None:
    words = [w.value for words in (Status, Verdict, Role, Effect, Catch) for w in words]
    words += [c.name for c in (*RECORDS, *COMPARISONS, *SAMPLES)]
    words += list(checks.all_checks())
    for word in words:
        assert all(meaning.text for meaning in explain(word)), word


def test_a_word_with_two_meanings_has_both() -> None:
    assert {m.kind for m in explain("implausible")} == {"status", "effect of a finding"}


def test_an_unknown_word_names_its_neighbours() -> None:
    with pytest.raises(UsageError) as refused:
        explain("implausable")
    assert "implausible" in refused.value.remedy
    assert "implausable" not in meanings()


def test_what_the_terminal_and_the_thresholds_show_can_be_looked_up(tmp_path: Path) -> None:
    """Heads of tables, and every key of the YAML; a head may hold a unit or an interval."""
    folder = make_run(tmp_path / "run")
    records = Facts.read(folder).records
    heads = [*tables.NARROW, *tables.WIDE, *tables.others(records).columns]
    words = {word for head in heads for word in re.sub(r" \[.*", "", head).split(", ")}
    document = as_data(decide_run(records, Facts.read(folder).plan))

    def keys(value: object) -> Iterator[str]:
        if isinstance(value, dict):
            for key, inner in value.items():
                yield from (key, *keys(inner)) if key not in GPUS else ()
        elif isinstance(value, list):
            for inner in value:
                yield from keys(inner)

    words |= set(keys(document)) - {"gpu"}
    words |= {"floor", "oracle", "harness", "margin", "ephemeral", "ratio", "unpinned"}
    unknown = []
    for word in sorted(words):
        try:
            assert all(meaning.text for meaning in explain(word)), word
        except UsageError:
            unknown.append(word)
    assert unknown == []


def test_a_size_is_told_in_the_terms_of_each_op() -> None:
    by_op = {m.text.partition(":")[0]: m.text for m in explain("S") if m.kind == "size"}
    assert "S blocks a query" in by_op["of selection_blocks"]
    assert "a cache of S tokens" in by_op["of decode_dense"]
    for name in ops.shipped():
        for size in ops.get(name).shape_model.model_fields:
            assert any(m.text.startswith(f"of {name}: ") for m in explain(size)), (name, size)
