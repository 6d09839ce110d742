"""`nsabench explain` knows every word that output, help and pages use."""

import json
import re
from pathlib import Path

import click
import pytest

from nsabench import checks, ops, registry
from nsabench.checks import Effect
from nsabench.cli import group
from nsabench.cli._help import SUMMARIES
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Catch, Role, Status, Verdict
from nsabench.output import tables
from nsabench.output.document import TableBlock
from nsabench.output.explain import explain, meanings
from nsabench.output.report import Facts
from nsabench.verdicts.tables import COMPARISONS, RECORDS, SAMPLES
from nsabench.verdicts.threshold import decide_run
from nsabench.verdicts.thresholds_yaml import as_data
from tests.commands import invoke
from tests.runs import make_run

GPUS = {"NVIDIA H200"}
KNOWN = meanings()
DOCS = Path(__file__).parents[3] / "docs"
# Pages about measuring. Other pages also use names of functions.
PAGES = [
    *("tutorial/first-verdict.md", "how-to/check-a-kernel.md", "how-to/compare-versions.md"),
    *("how-to/slurm.md", "how-to/gate-in-ci.md", "how-to/images.md", "how-to/measure.md"),
    *("how-to/read-a-report.md", "how-to/write-a-matrix.md", "explanation/measurement.md"),
    *("explanation/alternatives.md", "explanation/checks-and-controls.md"),
    *("explanation/packages.md", "explanation/regimes.md", "explanation/threat-model.md"),
    *("results/README.md", "results/decode.md", "results/nsa-attention.md"),
]
# Words of PyTorch, JSON and shells, names of files, commands, and words that a page explains.
NAMES = {
    *("scaled_dot_product_attention", "grad_fn", "grad_out", "null", "bash", "zsh", "fish"),
    *("quick", "matrices", "results", "cpu", "instead", "nsabench", "only", "published", "alone"),
    *SUMMARIES,
}


def test_every_word_has_a_meaning():
    words = [w.value for words in (Status, Verdict, Role, Effect, Catch) for w in words]
    words += [c.name for c in (*RECORDS, *COMPARISONS, *SAMPLES)]
    words += list(checks.CHECKS)
    assert {word.lower() for word in words} <= KNOWN.keys()
    assert all(meaning.text for found in KNOWN.values() for meaning in found)


def test_a_word_with_two_meanings_has_both():
    assert {m.kind for m in explain("implausible")} == {"status", "effect of a finding"}


@pytest.mark.parametrize(
    ("word", "near"),
    [("implausable", "implausible"), ("isolatd", "isolated"), ("baselins", "baseline")],
)
def test_an_unknown_word_names_its_neighbours(word, near):
    with pytest.raises(UsageError) as refused:
        explain(word)
    assert near in refused.value.remedy
    assert word not in KNOWN


def is_explained(word):
    return word.lower() in KNOWN or bool(explain(word))


def list_keys(value):
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *list_keys(inner)) if key not in GPUS else ()
    elif isinstance(value, list):
        for inner in value:
            yield from list_keys(inner)


def test_headings_of_tables_and_keys_of_thresholds_are_explained(tmp_path):
    """A heading may hold a unit or an interval."""
    facts = Facts.read(make_run(tmp_path / "run"))
    blocks = [
        *tables.candidates(facts.records, wide=True),
        *tables.candidates(facts.records, wide=False),
        tables.others(facts.records),
    ]
    heads = [
        column for block in blocks if isinstance(block, TableBlock) for column in block.columns
    ]
    words = {word for head in heads for word in re.sub(r" (\[.*|×)", "", head).split(", ")}
    words |= set(list_keys(as_data(decide_run(facts.records, facts.plan)))) - {"gpu"}
    for word in sorted(words):
        assert is_explained(word), word


def test_every_bold_word_of_the_glossary_and_every_command_is_explained():
    page = (DOCS / "reference" / "glossary.md").read_text()
    words = {word for key in re.findall(r"\*\*(.+?)\*\*", page) for word in key.split(", ")}
    assert len(words) > 100
    for word in words:
        assert is_explained(word), word
    listed = json.loads(invoke("explain", "--json").stdout)
    kinds = {(meaning["word"], meaning["kind"]) for meaning in listed}
    assert {(name, "command") for name in SUMMARIES} <= kinds
    assert {("margin", "option"), ("gpus", "option")} <= kinds


def list_commands(command):
    yield command
    if isinstance(command, click.Group):
        context = click.Context(command)
        for name in command.list_commands(context):
            if (inner := command.get_command(context, name)) is not None:
                yield from list_commands(inner)


def test_every_choice_of_an_option_and_every_distribution_is_explained():
    words = {d for name in ops.shipped() for d in ops.get(name).distributions}
    for command in list_commands(group):
        for option in command.params:
            if isinstance(option, click.Option) and isinstance(option.type, click.Choice):
                words |= set(map(str, option.type.choices))
    assert words > {"brief", "packed"}
    for word in sorted(words - NAMES):
        assert is_explained(word), word


@pytest.mark.parametrize("page", PAGES)
def test_every_word_of_a_page_is_explained(page):
    text = re.sub(r"^ *```.*?^ *```", "", (DOCS / page).read_text(), flags=re.S | re.M)
    words = set(re.findall(r"`([a-z][a-z_]+)`", text)) | set(
        re.findall(r"(?<!\*)\*([a-z][a-z ]+)\*(?!\*)", text)
    )
    for word in sorted(words - NAMES - {item.name for item in registry.load()}):
        assert is_explained(word), word


def test_a_size_is_explained_for_each_op_in_as_few_texts_as_there_are():
    for size, text, op in (
        ("S", "S blocks a query", "selection_blocks"),
        ("S", "a cache of S tokens", "decode_dense"),
    ):
        assert any(text in m.text and op in m.text for m in KNOWN[size.lower()]), (size, op)
    for name in ops.shipped():
        for size in ops.get(name).shape_model.model_fields:
            texts = [m.text for m in KNOWN[size.lower()] if m.kind == "size"]
            assert any(name in text for text in texts), (name, size)
            assert len(texts) == len(set(texts)) <= 8, size
