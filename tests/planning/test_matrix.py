"""Matrices: what they span, and what is said of a bad one."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.planning import matrix
from nsabench.planning.resolve import shipped_matrices

DATA = Path(__file__).parents[1] / "data" / "reference"


def load(tmp_path: Path, text: str) -> matrix.LoadedMatrix:
    path = tmp_path / "m.yaml"
    path.write_text(text)
    [loaded] = matrix.load(path)
    return loaded


def test_axes_are_a_product(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        "op: selection_rows\naxes: {N: [1, 2], H: 2, D: 16, L: [8, 16], dtype: [float16, float32]}",
    )
    assert len({case.id for case in loaded.cases}) == 8


def test_include_inherits_common_axes(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        """
op: selection_rows
axes: {dtype: [float16, bfloat16]}
include:
  - {N: 1, H: [1, 2], D: 16, L: 8}
  - {N: 3, H: 1, D: 16, L: 8, dtype: float32}
""",
    )
    found = {(c.shape["N"], c.shape["H"], str(c.dtype)) for c in loaded.cases}
    assert found == {
        (1, 1, "float16"),
        (1, 1, "bfloat16"),
        (1, 2, "float16"),
        (1, 2, "bfloat16"),
        (3, 1, "float32"),
    }


def test_the_shipped_rows_are_those_of_the_earlier_table() -> None:
    [loaded] = matrix.load(shipped_matrices()["selection_rows"])
    with (DATA / "m4_rtx4090_dense.csv").open() as file:
        table = {tuple(int(r[k]) for k in ("N", "H", "D", "Dv", "L")) for r in csv.DictReader(file)}
    assert len(table) == 26
    for dtype in ("float16", "bfloat16"):
        shapes = [c.shape for c in loaded.cases if c.dtype == dtype]
        assert len(shapes) == 26
        assert {tuple(s[k] for k in ("N", "H", "D", "Dv", "L")) for s in shapes} == table


def test_an_id_depends_on_what_is_measured_only(tmp_path: Path) -> None:
    text = "op: selection_rows\naxes: {N: 1, H: 1, D: 16, L: 8}\n"
    [a] = load(tmp_path, text).cases
    [b] = load(tmp_path, text + "timeout_s: 5\ntiming: {warmup_s: 1}\n").cases
    [c] = load(tmp_path, text.replace("L: 8", "L: 9")).cases
    assert a.id == b.id != c.id


@pytest.mark.parametrize(
    ("text", "sentence", "remedy"),
    [
        ("op: selection_rows\ntimout_s: 4\n", "m.yaml:2: timout_s is not a known key", "timeout_s"),
        ("op: selection_row\n", "m.yaml:1: op: there is no op 'selection_row'", "selection_rows"),
        ("axes: {N: 1}\n", "op is missing", "add it"),
        ("op: selection_rows\naxes:\n  N: 1\n  M: 2\n", "m.yaml:4: axes.M is not an axis", "valid"),
        ("op: selection_rows\naxes:\n  N: 1\n  dtyp: float16\n", "axes.dtyp is not an", "dtype"),
        (
            "op: selection_rows\naxes: {N: 1, H: 1, L: 4, D: 8}\ntiming:\n  stoping: {}\n",
            "m.yaml:4: timing.stoping is not a known key",
            "stopping",
        ),
        (
            "op: selection_rows\naxes: {N: 1, H: 1, L: 4, D: 8}\n"
            "timing:\n  stopping: {kind: ratio_ci, widht: 1}\n",
            "m.yaml:4: timing.stopping.widht is not a known key",
            "width",
        ),
        ("op: selection_rows\naxes:\n  N: 0\n  H: 1\n  D: 8\n  L: 4\n", "m.yaml:3: axes.N", "corr"),
        ("op: selection_rows\naxes: {N: 1, H: 1, D: 8}\n", "axes.L is missing", "add it"),
        (
            "op: selection_rows\naxes:\n  {N: 1, H: 1, D: 8, L: 4, dtype: float8}\n",
            "axes.dtype",
            "correct",
        ),
        (
            "op: selection_rows\naxes: {N: 1, H: 1, D: 8, L: 4, direction: backward}\n",
            "selection_rows has no direction 'backward'",
            "forward",
        ),
        ("op: selection_rows\nop: selection_rows\n", "m.yaml:2: op is given twice", "remove"),
        ("op: [\n", "not YAML", "mend"),
        ("op: !!bool maybe\n", "m.yaml:1: 'maybe' is not a valid bool", "mend"),
        ("op: !!timestamp foo\n", "m.yaml:1: 'foo' is not a valid timestamp", "mend"),
        ("op: " + "[" * 40 + "]" * 40, "nested over 32 levels deep in line 1", "shorter"),
        (
            "op: selection_rows\naxes: {N: 1, H: 1, L: 4, D: 8}\n"
            "timing:\n  stopping: {kind: ratio_ci, max_rounds: 10}\n",
            "max_rounds 10 is below min_rounds 20",
            "correct",
        ),
        ("- 1\n", "m.yaml:1: the document", "correct"),
        ("", "op is missing", "add it"),
        ("op: selection_rows\ntimeout_s: -1\n", "m.yaml:2: timeout_s", "correct"),
        ("op: selection_rows\ntimeout_s: .nan\n", "m.yaml:2: timeout_s", "correct"),
    ],
)
def test_a_bad_matrix_is_one_sentence_and_a_remedy(
    tmp_path: Path, text: str, sentence: str, remedy: str
) -> None:
    with pytest.raises(UsageError) as error:
        load(tmp_path, text)
    assert sentence in str(error.value)
    assert remedy in error.value.remedy
    assert "\n" not in str(error.value)


def test_a_file_may_hold_several_matrices(tmp_path: Path) -> None:
    path = tmp_path / "m.yaml"
    path.write_text(
        "op: selection_rows\naxes: {N: 1, H: 1, D: 8, L: 4}\n---\n"
        "op: selection_varlen\naxes: {N: 1, H: 1, D: 8, L: 4}\n"
    )
    assert [m.cases[0].op for m in matrix.load(path)] == ["selection_rows", "selection_varlen"]
    path.write_text(path.read_text() + "oops: 1\n")
    with pytest.raises(UsageError, match=r"m\.yaml:6: oops is not a known key"):
        matrix.load(path)


def test_a_shipped_case_shows_who_counts_a_repeated_block_twice() -> None:
    """Where all blocks of a row are given as often, the weights stay the same."""
    cases = [
        case
        for loaded in matrix.load(shipped_matrices()["selection_edge"])
        for case in loaded.cases
        if case.distribution == "repeated"
    ]
    uneven = []
    for case in cases:
        inputs = ops.get(case.op).draw(ops.sizes(case), case.dtype, "repeated", case.seed, "cpu")
        rows = inputs.tensors["block_indices"].flatten(0, 2)
        times = [row[row >= 0].unique(return_counts=True)[1].unique() for row in rows]
        uneven.append(any(len(counts) > 1 for counts in times))
    assert any(uneven)


@pytest.mark.parametrize("name", sorted(shipped_matrices()))
def test_every_shipped_matrix_spans_cases(name: str) -> None:
    assert all(loaded.cases for loaded in matrix.load(shipped_matrices()[name]))


def test_a_missing_file_is_said(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        matrix.load(tmp_path / "none.yaml")
