"""Messages name what is most likely missing, and their remedies work."""

from pathlib import Path

import pytest

from nsabench.errors import UsageError, VerificationFailed
from nsabench.model.plan import PlannedCase
from nsabench.planning import matrix, resolve
from tests.commands import invoke
from tests.runs import make_run

SKIPPED = """
from nsabench import implementation


@implementation(op="selection_rows", name="mine", devices=("cuda",))
def mine(q, k, v, *, sm_scale): ...
"""
ROWS = "op: selection_rows\naxes: {N: 2, H: 1, D: 8, L: [8, 16]%s}\n%s"


def spanned(tmp_path, axes="", more=""):
    path = tmp_path / "m.yaml"
    path.write_text(ROWS % (axes, more))
    return matrix.load(path)


@pytest.mark.parametrize(
    ("called", "dtype"),
    [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")],
)
def test_a_dtype_is_known_by_its_other_names(tmp_path, called, dtype):
    [short] = spanned(tmp_path, f", dtype: {called}")
    [long] = spanned(tmp_path, f", dtype: {dtype}")
    assert [c.id for c in short.cases] == [c.id for c in long.cases]


def test_a_run_of_backwards_has_candidates_and_no_threshold(tmp_path):
    def backward(plan):
        [loaded] = resolve.load_matrices(["selection_backward"])
        case = loaded.cases[0]
        names = tuple(i.name for i in plan.implementations)
        planned = PlannedCase(id=case.id, case=case, implementations=names)
        infos = [i.model_copy(update={"op": case.op}) for i in plan.implementations]
        return plan.model_copy(update={"cases": [planned], "implementations": infos})

    done = invoke("threshold", make_run(tmp_path / "run", change=backward))
    assert isinstance(done.error, UsageError) and "forward" in str(done.error)


@pytest.mark.parametrize(
    ("words", "named", "remedy"),
    [
        (["check", "matrix.yaml"], "matrix.yaml", "init"),
        (["check", "nowhere.py"], "nowhere.py", "init"),
        (["check", "."], ".", "Python file"),
        (["all", "quick", "--kernels", "matrix.yaml"], "matrix.yaml", "nsabench all"),
        (["check", "mine.py", "--ops", "matrix.yaml"], "matrix.yaml", "Python file"),
        (["all", "rows.py"], "rows.py", "--kernels rows.py"),
        (["plan", "rows.py"], "rows.py", "--kernels rows.py"),
        (["verify", ".", "--require", "pinned"], "pinned", "--key"),
        (["check", "mine.py", "--only", "yours"], "yours", "mine"),
    ],
)
def test_a_remedy_works_for_the_command_that_gives_it(tmp_path, monkeypatch, words, named, remedy):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NSABENCH_TRUSTED_KEYS", raising=False)
    for name in ("matrix.yaml", "rows.py"):
        Path(name).write_text("op: selection_rows\n")
    Path("mine.py").write_text(SKIPPED)
    done = invoke(*words)
    assert isinstance(done.error, UsageError), done
    assert named in str(done.error) and remedy in done.error.remedy


def test_the_nearest_command_is_suggested():
    done = invoke("chek")
    assert done.returncode == 2 and "'check'" in done.stderr


def test_a_kernel_that_was_not_tried_is_not_fine(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SKIPPED)
    done = invoke("check", "mine.py", "--device", "cpu")
    assert done.returncode == 5 and "NOT RUN" in done.stdout, done


def test_an_archive_without_a_run_is_not_sound(tmp_path):
    (tmp_path / "stray").write_text("")
    assert isinstance(invoke("archive", "verify", tmp_path).error, VerificationFailed)
