"""Folders of runs: which is the latest, and which files of a run and of a scratch are removed."""

from pathlib import Path

from nsabench.running.clients import TemporaryFolder
from nsabench.running.folder import HEAD, RunFolder
from nsabench.running.policy import next_jobs
from tests.runs import Made, log_of, make_plan


def made(path):
    folder = RunFolder(path)
    folder.create()
    folder.plan.write_text("")
    folder.link_latest()
    return folder


def test_latest_is_the_last_one_that_was_begun(tmp_path):
    latest = tmp_path / "latest"
    for name in ("one", "two"):
        made(tmp_path / name)
        assert latest.resolve() == tmp_path / name
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "one", "two"]


def test_what_measured_nothing_is_not_the_latest(tmp_path):
    made(tmp_path / "one").discard()
    assert list(tmp_path.iterdir()) == []


def test_a_run_begins_where_another_measured_nothing(tmp_path):
    folder = made(tmp_path / "run")
    folder.create()
    assert [path.name for path in folder.path.iterdir()] == ["logs"]


def test_a_folder_of_ones_own_called_latest_is_left_alone(tmp_path):
    (tmp_path / "latest").mkdir()
    made(tmp_path / "one")
    assert (tmp_path / "latest").is_dir() and not (tmp_path / "latest").is_symlink()


def test_what_a_kernel_prints_is_no_heading(tmp_path):
    """Otherwise a page would show the text as printed by another implementation."""
    plan = make_plan(Made())
    job = next_jobs(plan, log_of(plan))[0]
    folder = made(tmp_path / "one")
    folder.keep_printed(job, [], f"begun\n{HEAD}sdpa_gqa\r{HEAD}sdpa_gqa\nI am slow\n")
    text = folder.printed(job.case.id, job.purpose).read_text()
    headings = [line for line in text.splitlines() if line.startswith(HEAD)]
    assert headings == [HEAD + ", ".join(job.implementations)]


def test_a_folder_that_its_owner_cannot_read_is_removed():
    folder = TemporaryFolder()
    (Path(folder.name) / "closed/inner").mkdir(parents=True)
    (Path(folder.name) / "closed").chmod(0)
    folder.remove()
    assert not Path(folder.name).exists()


def test_a_link_in_place_of_the_folder_is_removed_and_not_followed(tmp_path):
    (tmp_path / "kept").touch(0o400)
    folder = TemporaryFolder()
    Path(folder.name).rmdir()
    Path(folder.name).symlink_to(tmp_path)
    folder.remove()
    assert not Path(folder.name).is_symlink()
    assert (tmp_path / "kept").stat().st_mode & 0o777 == 0o400
