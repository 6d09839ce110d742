"""Matrices: the cases they span, the errors of bad ones, and how the command line narrows them."""

import csv
from pathlib import Path

import pytest

from nsabench import ops
from nsabench.errors import UsageError
from nsabench.model.vocabulary import Role, Runs
from nsabench.planning import matrix, resolve
from nsabench.planning.narrow import Narrowed
from nsabench.planning.resolve import shipped_matrices
from tests.runs import info

DATA = Path(__file__).parents[1] / "data" / "reference"


def load(tmp_path, text):
    path = tmp_path / "m.yaml"
    path.write_text(text)
    [loaded] = matrix.load(path)
    return loaded


def test_axes_are_a_product(tmp_path):
    loaded = load(
        tmp_path,
        "op: selection_rows\naxes: {N: [1, 2], H: 2, D: 16, L: [8, 16], dtype: [float16, float32]}",
    )
    assert len({case.id for case in loaded.cases}) == 8


def test_include_inherits_common_axes(tmp_path):
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


def test_the_shipped_rows_are_those_of_the_earlier_table():
    [loaded] = matrix.load(shipped_matrices()["selection_rows"])
    with (DATA / "m4_rtx4090_dense.csv").open() as file:
        table = {tuple(int(r[k]) for k in ("N", "H", "D", "Dv", "L")) for r in csv.DictReader(file)}
    assert len(table) == 26
    for dtype in ("float16", "bfloat16"):
        shapes = [c.shape for c in loaded.cases if c.dtype == dtype]
        assert len(shapes) == 26
        assert {tuple(s[k] for k in ("N", "H", "D", "Dv", "L")) for s in shapes} == table


def test_an_id_depends_on_what_is_measured_only(tmp_path):
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
def test_a_bad_matrix_is_one_sentence_and_a_remedy(tmp_path, text, sentence, remedy):
    with pytest.raises(UsageError) as error:
        load(tmp_path, text)
    assert sentence in str(error.value)
    assert remedy in error.value.remedy
    assert "\n" not in str(error.value)


def test_a_file_may_hold_several_matrices(tmp_path):
    path = tmp_path / "m.yaml"
    path.write_text(
        "op: selection_rows\naxes: {N: 1, H: 1, D: 8, L: 4}\n---\n"
        "op: selection_varlen\naxes: {N: 1, H: 1, D: 8, L: 4}\n"
    )
    assert [m.cases[0].op for m in matrix.load(path)] == ["selection_rows", "selection_varlen"]
    path.write_text(path.read_text() + "oops: 1\n")
    with pytest.raises(UsageError, match=r"m\.yaml:6: oops is not a known key"):
        matrix.load(path)


def test_a_shipped_case_shows_who_counts_a_repeated_block_twice():
    """If all blocks of a row are repeated equally often, counting the repeats changes no weight."""
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
def test_every_shipped_matrix_spans_cases(name):
    assert all(loaded.cases for loaded in matrix.load(shipped_matrices()[name]))


def test_a_missing_file_is_said(tmp_path):
    with pytest.raises(UsageError, match="cannot be read"):
        matrix.load(tmp_path / "none.yaml")


MATRIX = (
    "op: selection_rows\naxes: {N: 2, H: 1, D: [64, 128], L: [256, 512, 1024], "
    "dtype: [float16, bfloat16]}\n"
)


INSTALLED = [
    info("mine", Role.CANDIDATE, devices=(Runs.CPU,)),
    info("rows_cuda", Role.CANDIDATE, devices=(Runs.CPU,)),
    info("sdpa_gqa", Role.BASELINE, devices=(Runs.CPU,)),
]


def planned(tmp_path, *where, only=(), **more):
    path = tmp_path / "m.yaml"
    path.write_text(MATRIX)
    narrowed = Narrowed(where, only)
    return resolve.resolve(matrix.load(path), INSTALLED, device="cpu", narrowed=narrowed, **more)


@pytest.mark.parametrize(
    ("where", "cases"),
    [
        (["D=128 and L>=512"], 4),
        (["D == 128", "L<512"], 2),
        (["D!=128, dtype=fp16"], 3),
        (["op=selection_rows"], 12),
    ],
)
def test_conditions_hold_together(tmp_path, where, cases):
    assert len(planned(tmp_path, *where).cases) == cases


def test_only_names_candidates_and_leaves_the_baselines(tmp_path):
    plan = planned(tmp_path, only=("mi*",))
    assert {c.implementations for c in plan.cases} == {("mine", "sdpa_gqa")}


@pytest.mark.parametrize(
    ("given", "sentence", "remedy"),
    [
        ({"where": ["LL>4"]}, "no case has 'LL'", "did you mean 'L'?"),
        ({"where": ["L>4096"]}, "none of the 12 cases meets 'L>4096'", "nsabench plan"),
        ({"where": ["L is 4"]}, "'L is 4' is not a condition", "D=128 and L>=512"),
        ({"where": ["L>many"]}, "L is a number, not 'many'", "number"),
        ({"only": ("mines",)}, "no candidate is named 'mines'", "--kernels FILE.py; else, did you"),
        ({"only": ("sdpa_*",)}, "no candidate is named 'sdpa_*'", "--kernels FILE.py"),
    ],
)
def test_what_cannot_be_met_is_refused(tmp_path, given, sentence, remedy):
    with pytest.raises(UsageError) as refused:
        planned(tmp_path, *given.pop("where", ()), **given)
    assert sentence in str(refused.value) and remedy in refused.value.remedy
