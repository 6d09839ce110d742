"""Bad input ends a command with one sentence, a remedy and an exit code, and nothing is written."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from nsabench.cli import group
from nsabench.errors import EnvironmentRefused
from nsabench.evidence.manifest import seal
from nsabench.files import writing
from tests.commands import nsabench as nsabench
from tests.running.test_full_disk import full
from tests.runs import SIGNER, make_run


def good(op="selection_rows", parameters="q, k, v, *, sm_scale", more='name="m"'):
    return (
        "from nsabench import implementation\n"
        f'@implementation(op="{op}", {more})\n'
        f"def mine({parameters}): ...\n"
    )


def refused(done, sentence, remedy):
    assert done.error is not None and done.returncode == 2, done
    assert sentence in str(done.error) and "\n" not in str(done.error)
    assert remedy in done.error.remedy


@pytest.mark.parametrize(
    ("source", "sentence", "remedy"),
    [
        (
            "import no_such_module\n",
            "cannot be imported: ModuleNotFoundError",
            "install that module",
        ),
        ("raise SystemExit(0)\n", "cannot be imported: SystemExit", "fix the import"),
        (good("selection_row", "q"), "no op", "selection_rows"),
        (good(parameters="q, k"), "cannot be called as m(q, k, v, *, sm_scale)", "signature"),
        (
            good(more='name="sdpa_gqa"'),
            "two implementations of selection_rows are named 'sdpa_gqa'",
            "rename",
        ),
        (
            good(more='name="m", role="candidat"'),
            "implementation 'm' has the role 'candidat'",
            "baseline",
        ),
        ("x = 1\n", "mine.py registers no implementation", "decorate"),
        (
            good(more='name="m", kind="slow"'),
            "implementation 'm': kind: Input should be ",
            "correct this argument",
        ),
        ("import os\nos.abort()\n", "could not be imported: its process was killed", "import"),
    ],
)
def test_a_bad_kernels_file(tmp_path, tiny, nsabench, source, sentence, remedy):
    kernels = tmp_path / "mine.py"
    kernels.write_text(source)
    done = nsabench("all", tiny, "--device", "cpu", "--out", "run", "--kernels", kernels)
    refused(done, sentence, remedy)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("words", "sentence", "remedy"),
    [
        (("tiny.yaml", "--kernels", "no.py"), "no.py", "nsabench init"),
        (("typo.yaml",), "typo.yaml:5: timin is not a", "timing"),
        (("other.yaml",), "matches 'bmm_sofmax'", "bmm_softmax"),
        (("selection_row",), "no matrix 'selection_row'", "selection_rows"),
        (("tiny.yaml", "--shard", "3/2"), "'3/2'", "2/4"),
        (("tiny.yaml", "--shard", "a/b"), "'a/b'", "2/4"),
    ],
)
def test_a_bad_matrix_or_option(tmp_path, tiny, nsabench, words, sentence, remedy):
    text = tiny.read_text()
    (tmp_path / "typo.yaml").write_text(text.replace("timing:", "timin:"))
    (tmp_path / "other.yaml").write_text(text.replace("bmm_softmax", "bmm_sofmax"))
    refused(nsabench("plan", *words, "--device", "cpu"), sentence, remedy)


def test_a_folder_that_is_not_empty(tmp_path, tiny, nsabench):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.txt").write_text("mine")
    refused(nsabench("run", tiny, "--device", "cpu", "--out", "run"), "not empty", "--resume")
    assert (tmp_path / "run" / "thesis.txt").read_text() == "mine"


def test_resuming_what_is_no_run(tmp_path, nsabench):
    refused(nsabench("all", "--resume", tmp_path), "holds no run", "folder")


def test_cuda_where_there_is_none(tmp_path, tiny, nsabench):
    done = nsabench("run", tiny, "--device", "cuda", "--out", "run", CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 3
    assert "sees no CUDA device" in done.stderr and "--device cpu" in done.stderr
    assert not (tmp_path / "run").exists()


def test_a_report_onto_a_full_disk(tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    full(monkeypatch, "selection_report.tmp")
    arguments = ["report", str(make_run(tmp_path / "run")), "--out", str(tmp_path / "out")]
    with pytest.raises(EnvironmentRefused) as caught, writing():  # as in `main`
        CliRunner().invoke(group, arguments, catch_exceptions=False)
    said = "selection_report.md cannot be written: No space left on device"
    assert str(caught.value).endswith(said)
    assert caught.value.remedy == "make room, then try again."


@pytest.mark.parametrize("command", ["report", "audit", "threshold", "all"])
def test_a_signed_run_that_was_altered(tmp_path, nsabench, command):
    """`all --resume` does not sign the run again."""
    run = make_run(tmp_path / "run")
    seal(run, SIGNER)
    words = {"report": (run, "--out", tmp_path / "out"), "all": ("--resume", run)}
    path = run / "log.jsonl"
    path.write_text(path.read_text().replace('"time_ms":[', '"time_ms":[0.001,', 1))
    done = nsabench(command, *words.get(command, (run,)))
    assert done.returncode == 4
    assert "log.jsonl was changed after the signature" in done.stderr


def test_no_folder_for_temporary_files_is_said(tmp_path):
    """This happens in a container with `--read-only` and no `--tmpfs`."""
    code = "\n".join(
        [
            "import os, sys, tempfile",
            "tempfile._candidate_tempdir_list = lambda: ['/proc']",
            "sys.argv = ['nsabench', 'doctor']",
            "from nsabench.cli import main",
            "main()",
        ]
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 3
    assert "there is no folder for temporary files" in done.stderr
    assert "--tmpfs /tmp:rw,exec" in done.stderr
