"""Command, checkouts and environment variables."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nsabench.machine.environment import provenance
from nsabench.machine.environment.model import Checkout
from nsabench.machine.environment.provenance import read_run
from nsabench.model.plan import Plan


def git(folder: Path, *arguments: str) -> None:
    identity = ["-c", "user.name=n", "-c", "user.email=e@example.org", "-c", "commit.gpgsign=false"]
    subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True)


needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")


Read = Callable[..., Checkout]


@pytest.fixture
def read_checkout(quick: Plan) -> Read:
    """Read the checkout of a file of kernels."""

    def read(kernels: Path, absent: dict[str, str] | None = None) -> Checkout:
        plan = quick.model_copy(update={"kernels": str(kernels)})
        return read_run(plan, {}, {} if absent is None else absent).checkouts[1]

    return read


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """A file in a git checkout."""
    folder = tmp_path / "checkout"
    folder.mkdir()
    git(folder, "init", "-q")
    (folder / "mine.py").write_text("one\n")
    git(folder, "add", "mine.py")
    git(folder, "commit", "-qm", "first")
    return folder / "mine.py"


@needs_git
def test_a_clean_checkout_then_a_dirty_one(
    kernels: Path, read_checkout: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_DIR", "/nowhere")  # as in a hook
    clean = read_checkout(kernels)
    assert clean.commit and len(clean.commit) == 40 and clean.dirty is False
    kernels.write_text("two\n")
    assert read_checkout(kernels) == clean.model_copy(update={"dirty": True})


@needs_git
def test_an_untracked_folder_is_not_from_the_commit_around_it(
    kernels: Path, read_checkout: Read
) -> None:
    other = kernels.parent / ".venv" / "mine.py"
    other.parent.mkdir()
    other.write_text("")
    absent: dict[str, str] = {}
    assert read_checkout(other, absent).commit is None
    assert "not part of" in absent["run.checkouts.kernels"]


@needs_git
def test_no_checkout_and_no_git(
    tmp_path: Path, read_checkout: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels, absent = tmp_path / "mine.py", dict[str, str]()
    kernels.write_text("")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert read_checkout(kernels, absent).commit is None
    assert "not a git repository" in absent["run.checkouts.kernels"]
    assert str(tmp_path) not in absent["run.checkouts.kernels"]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert read_checkout(kernels, absent).commit is None
    assert absent["run.checkouts.kernels"] == "git is not installed"


def test_an_image_names_its_commit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    absent: dict[str, str] = {}
    run = read_run(None, {provenance.COMMIT_VARIABLE: "abc"}, absent)
    assert ([c.commit for c in run.checkouts], absent) == (["abc"], {})


def test_only_allowed_variables() -> None:
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
def test_the_command_can_be_typed_again(
    monkeypatch: pytest.MonkeyPatch, started: str, typed: list[str]
) -> None:
    monkeypatch.setattr(sys, "argv", [started, "all"])
    assert read_run(None, {}, {}).command == typed
