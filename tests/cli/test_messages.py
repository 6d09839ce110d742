"""Messages that a stranger stumbled over: each asks for what is most likely missing first."""

from pathlib import Path

import pytest
from click.testing import CliRunner

from nsabench.cli import group
from nsabench.cli.report import command as report
from nsabench.cli.threshold import command as threshold
from nsabench.errors import UsageError, VerificationFailed
from nsabench.model.plan import ImplementationInfo, Plan, PlannedCase
from nsabench.model.vocabulary import Role, Runs
from nsabench.planning import matrix, resolve
from nsabench.registry import implementation
from tests.runs import make_run

SKIPPED = """
from nsabench import implementation


@implementation(op="selection_rows", name="mine", devices=("cuda",))
def mine(q, k, v, *, sm_scale): ...
"""
ROWS = "op: selection_rows\naxes: {N: 2, H: 1, D: 8, L: [8, 16]%s}\n%s"
INSTALLED = [
    ImplementationInfo(
        op="selection_rows", name="sdpa_gqa", role=Role.BASELINE, devices=(Runs.CPU,), source="x"
    )
]


def spanned(tmp_path: Path, axes: str = "", more: str = "") -> list[matrix.LoadedMatrix]:
    path = tmp_path / "m.yaml"
    path.write_text(ROWS % (axes, more))
    return matrix.load(path)


@pytest.mark.parametrize(
    ("called", "dtype"),
    [("fp16", "float16"), ("half", "float16"), ("bf16", "bfloat16"), ("fp32", "float32")],
)
def test_a_dtype_is_known_by_its_other_names(tmp_path: Path, called: str, dtype: str) -> None:
    [short] = spanned(tmp_path, f", dtype: {called}")
    [long] = spanned(tmp_path, f", dtype: {dtype}")
    assert [c.id for c in short.cases] == [c.id for c in long.cases]


@pytest.mark.parametrize("parameter", ["devices", "distributions", "directions"])
def test_a_text_is_no_list(parameter: str) -> None:
    with pytest.raises(UsageError, match=f"{parameter}: Input should be a valid tuple") as refused:
        implementation(op="selection_rows", name="mine", **{parameter: "cpu"})(len)  # type: ignore[arg-type]
    assert "write lists as" in refused.value.remedy


def test_a_name_that_is_not_there_may_be_of_a_file_that_was_not_given(tmp_path: Path) -> None:
    matrices = spanned(tmp_path, more="implementations: {only: [mine]}\n")
    with pytest.raises(UsageError, match="matches 'mine'") as refused:
        resolve.resolve(matrices, INSTALLED, device="cpu")
    assert refused.value.remedy.startswith("if it is your own, give its file: --kernels FILE.py;")
    (tmp_path / "my.py").write_text("")
    given = {"kernels": tmp_path / "my.py"}
    with pytest.raises(UsageError, match="matches 'mine'") as refused:
        resolve._select(matrices[0], matrices[0].cases[0], INSTALLED, given["kernels"])
    assert refused.value.remedy.startswith("my.py registers none of that name for this op;")


def test_a_kind_that_is_not_there_is_said_in_plain_words(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        spanned(tmp_path, more="timing: {stopping: {kind: fixed, rounds: 20}}\n")
    assert str(refused.value).endswith("timing.stopping: 'fixed' is not a kind")
    assert "'fixed_count'" in refused.value.remedy


def test_a_folder_that_is_not_there_or_holds_no_run_is_not_unsigned(tmp_path: Path) -> None:
    for command, path, sentence in (
        (report, tmp_path / "nowhere", "there is no folder"),
        (report, tmp_path, "holds no run"),
        (threshold, tmp_path, "holds no run"),
    ):
        done = CliRunner().invoke(command, [str(path)])
        assert isinstance(done.exception, UsageError) and sentence in str(done.exception)
        assert "unsigned" not in done.output


def test_a_run_of_backwards_has_candidates_and_no_threshold(tmp_path: Path) -> None:
    def backward(plan: Plan) -> Plan:
        [loaded] = resolve.load_matrices(["selection_backward"])
        case = loaded.cases[0]
        names = tuple(i.name for i in plan.implementations)
        planned = PlannedCase(id=case.id, case=case, implementations=names)
        infos = [i.model_copy(update={"op": case.op}) for i in plan.implementations]
        return plan.model_copy(update={"cases": [planned], "implementations": infos})

    done = CliRunner().invoke(threshold, [str(make_run(tmp_path / "run", change=backward))])
    assert isinstance(done.exception, UsageError)
    assert "all of these cases are backward" in str(done.exception)


@pytest.mark.parametrize(
    ("words", "named", "remedy"),
    [
        (["check", "matrix.yaml"], "matrix.yaml", "init"),
        (["check", "nowhere.py"], "nowhere.py", "init"),
        (["all", "rows.py"], "rows.py", "--kernels rows.py"),
        (["plan", "rows.py"], "rows.py", "--kernels rows.py"),
        (["verify", ".", "--require", "pinned"], "pinned", "--key"),
        (["check", "mine.py", "--only", "yours"], "yours", "mine"),
    ],
)
def test_a_remedy_works_for_the_command_that_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], named: str, remedy: str
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("NSABENCH_TRUSTED_KEYS", raising=False)
    for name in ("matrix.yaml", "rows.py"):
        Path(name).write_text("op: selection_rows\n")
    Path("mine.py").write_text(SKIPPED)
    done = CliRunner().invoke(group, words)
    assert isinstance(done.exception, UsageError), done.output
    assert named in str(done.exception) and remedy in done.exception.remedy


def test_a_kernel_that_was_not_tried_is_not_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(SKIPPED)
    done = CliRunner().invoke(group, ["check", "mine.py", "--device", "cpu"], standalone_mode=False)
    assert done.return_value == 5 and "NOT RUN" in done.output, done.output


def test_an_archive_without_a_run_is_not_sound(tmp_path: Path) -> None:
    (tmp_path / "stray").write_text("")
    done = CliRunner().invoke(group, ["archive", "verify", str(tmp_path)])
    assert isinstance(done.exception, VerificationFailed)
