"""Command, checkouts and environment variables."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from nsabench.machine.environment import provenance
from nsabench.machine.environment.identifiers import Redactor
from nsabench.machine.environment.provenance import (
    _program,
    allowed_variables,
    read_checkout,
    read_run,
)


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    git(tmp_path, "init", "-q")
    (tmp_path / "mine.py").write_text("one\n")
    git(tmp_path, "add", "mine.py")
    git(tmp_path, "commit", "-qm", "first")
    return tmp_path


@needs_git
def test_a_clean_checkout_then_a_dirty_one(checkout: Path) -> None:
    clean = read_checkout("kernels", checkout, {})
    assert clean.commit and len(clean.commit) == 40
    assert (clean.dirty, clean.diff_sha256, clean.untracked) == (False, None, 0)

    (checkout / "mine.py").write_text("two\n")
    (checkout / "other.py").write_text("new\n")
    dirty = read_checkout("kernels", checkout, {})
    assert (dirty.commit, dirty.dirty, dirty.untracked) == (clean.commit, True, 1)
    assert dirty.diff_sha256 == read_checkout("kernels", checkout, {}).diff_sha256
    (checkout / "mine.py").write_text("three\n")
    assert dirty.diff_sha256 != read_checkout("kernels", checkout, {}).diff_sha256


@needs_git
def test_an_untracked_folder_is_not_from_the_commit_around_it(checkout: Path) -> None:
    (checkout / ".venv/nsabench").mkdir(parents=True)
    absent: dict[str, str] = {}
    assert read_checkout("nsabench", checkout / ".venv/nsabench", absent).commit is None
    assert "not part of" in absent["run.checkouts.nsabench"]


@needs_git
def test_variables_of_a_hook_do_not_lead_astray(
    checkout: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")
    assert read_checkout("kernels", checkout, {}).commit


@needs_git
def test_no_checkout_and_no_git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    absent: dict[str, str] = {}
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_checkout("kernels", tmp_path, absent).commit is None
    assert "not a git repository" in absent["run.checkouts.kernels"]
    assert str(tmp_path) not in absent["run.checkouts.kernels"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_checkout("kernels", tmp_path, absent).commit is None
    assert absent["run.checkouts.kernels"] == "git is not installed"


def test_an_image_names_its_commit(
    redactor: Redactor, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent: dict[str, str] = {}
    run = read_run(None, {provenance.COMMIT_VARIABLE: "abc"}, redactor, absent)
    assert [c.commit for c in run.checkouts] == ["abc"]
    assert absent == {}


def test_only_allowed_variables(redactor: Redactor) -> None:
    given = {
        "CUDA_VISIBLE_DEVICES": "0",
        "TRITON_INTERPRET": "1",
        "NSABENCH_COMBO": "torch-2.8",
        "NSABENCH_SIGNING_KEY": "hidden",
        "NSABENCH_SIGNING_KEY_PASSPHRASE_FILE": "hidden",
        "NSABENCH_ID_SALT_FILE": "hidden",
        "TORCH_API_TOKEN": "hidden",
        "AWS_SECRET_ACCESS_KEY": "hidden",
        "HOME": "hidden",
        "MYCUDA_X": "hidden",
        "PYTHONHASHSEED": "0",
    }
    kept = allowed_variables(given, redactor)
    assert kept == {
        "CUDA_VISIBLE_DEVICES": "0",
        "NSABENCH_COMBO": "torch-2.8",
        "PYTHONHASHSEED": "0",
        "TRITON_INTERPRET": "1",
    }


@pytest.mark.parametrize(
    ("started", "typed"),
    [
        ("/usr/lib/nsabench/__main__.py", ["python", "-m", "nsabench"]),
        ("/x/nsabench", ["nsabench"]),
    ],
)
def test_the_command_can_be_typed_again(started: str, typed: list[str]) -> None:
    assert _program(started) == typed
