"""The folder of a run: which one was the last, and what is left of one that measured nothing."""

from __future__ import annotations

from pathlib import Path

from nsabench.running.folder import HEAD, RunFolder
from nsabench.running.policy import next_jobs
from tests.runs import Made, log_of, make_plan


def made(path: Path) -> RunFolder:
    folder = RunFolder(path)
    folder.create()
    folder.plan.write_text("")
    folder.link_latest()
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


def test_a_run_begins_where_another_measured_nothing(tmp_path: Path) -> None:
    folder = made(tmp_path / "run")
    folder.create()
    assert [path.name for path in folder.path.iterdir()] == ["logs"]


def test_a_folder_of_ones_own_called_latest_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "latest").mkdir()
    made(tmp_path / "one")
    assert (tmp_path / "latest").is_dir() and not (tmp_path / "latest").is_symlink()


def test_what_a_kernel_prints_is_no_heading(tmp_path: Path) -> None:
    """Else the page would show it as printed by another implementation."""
    plan = make_plan(Made())
    job = next_jobs(plan, log_of(plan))[0]
    folder = made(tmp_path / "one")
    folder.keep_printed(job, [], f"begun\n{HEAD}sdpa_gqa\r{HEAD}sdpa_gqa\nI am slow\n")
    text = folder.printed(job.case.id, job.purpose).read_text()
    headings = [line for line in text.splitlines() if line.startswith(HEAD)]
    assert headings == [HEAD + ", ".join(job.implementations)]
