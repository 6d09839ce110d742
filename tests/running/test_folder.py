"""The folder of a run: which one was the last, and what is left of one that measured nothing."""

from __future__ import annotations

from pathlib import Path

from nsabench.running.folder import RunFolder


def made(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    folder.plan.write_text("")
    folder.is_latest()
    return folder


def test_latest_is_the_last_one_that_was_begun(tmp_path: Path) -> None:
    latest = tmp_path / "latest"
    for name in ("one", "two"):
        made(tmp_path / name)
        assert latest.resolve() == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_what_measured_nothing_is_not_the_latest(tmp_path: Path) -> None:
    made(tmp_path / "one").discard()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_ones_own_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    made(tmp_path / "one")
    assert (tmp_path / "latest").is_dir() and not (tmp_path / "latest").is_symlink()
