"""The environment of a run names its command, commits and allowed variables."""

import shutil
import subprocess
import sys

import pytest

from nsabench.machine.environment import provenance
from nsabench.machine.environment.provenance import read_run


def git(folder, *arguments):
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


def read_commit(kernels, plan, absent):
    plan = plan.model_copy(update={"kernels": str(kernels)})
    return read_run(plan, {}, absent).commits.get("kernels")


@pytest.fixture
def kernels(tmp_path):
    """Return a committed file in a git checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "mine.py").write_text("one\n")
    git(folder, "add", "mine.py")
    git(folder, "commit", "-qm", "first")
    return folder / "mine.py"


@needs_git
def test_a_clean_checkout_then_a_dirty_one(kernels, quick, monkeypatch):
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # git sets it for a hook
    clean = read_commit(kernels, quick, {})
    assert clean is not None and len(clean) == 40
    kernels.write_text("two\n")
    assert read_commit(kernels, quick, {}) == f"{clean}-dirty"


@needs_git
def test_a_folder_without_a_commit(kernels, quick, tmp_path, monkeypatch):
    absent = {}
    untracked = kernels.parent / ".venv" / "mine.py"
    untracked.parent.mkdir()
    assert read_commit(untracked, quick, absent) is None
    assert "not part of" in absent["run.commits.kernels"]
    alone = tmp_path / "mine.py"
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_commit(alone, quick, absent) is None
    assert "not a git repository" in absent["run.commits.kernels"]
    assert str(tmp_path) not in absent["run.commits.kernels"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_commit(alone, quick, absent) is None
    assert absent["run.commits.kernels"] == "git is not installed"


def test_an_image_names_its_commit(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    absent = {}
    run = read_run(None, {provenance.COMMIT_VARIABLE: "abc"}, absent)
    assert (run.commits, absent) == ({"nsabench": "abc"}, {})


def test_only_allowed_variables():
    allowed = {
        "CUDA_VISIBLE_DEVICES": "0",
        "NSABENCH_COMBO": "torch-2.8",
        "PYTHONHASHSEED": "0",
        "TRITON_INTERPRET": "1",
    }
    hidden = (
        "NSABENCH_SIGNING_KEY",
        "NSABENCH_SIGNING_KEY_PASSPHRASE_FILE",
        "TORCH_API_TOKEN",
        "AWS_SECRET_ACCESS_KEY",
        "HOME",
        "MYCUDA_X",
    )
    assert read_run(None, allowed | dict.fromkeys(hidden, "hidden"), {}).variables == allowed


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        ("/usr/lib/nsabench/__main__.py", ["python", "-m", "nsabench", "all"]),
        ("/x/nsabench", ["nsabench", "all"]),
    ],
)
def test_the_command_can_be_typed_again(monkeypatch, started, typed):
    monkeypatch.setattr(sys, "argv", [started, "all"])
    assert read_run(None, {}, {}).command == typed
