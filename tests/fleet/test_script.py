"""The script of a task that goes through a bucket: what it takes away, and whose it trusts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from nsabench.cli.fleet import command
from tests.fleet.test_devices import TINY

TASK = {"SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "2", "SLURMD_NODENAME": "node"}


def script(folder: Path, measured: str, *words: str) -> Path:
    """measured: what is called in the place of nsabench."""
    matrix = folder / "tiny.yaml"
    matrix.write_text(TINY)
    out = folder / "fleet"
    words = ("slurm", str(matrix), "--device", "cpu", "--shards", "2", "--out", str(out), *words)
    done = CliRunner().invoke(command, list(words))
    assert done.exit_code == 0, done.output
    text = (out / "shard.sh").read_text()
    [start] = [line for line in text.splitlines() if " fleet measure " in line]
    path = folder / "shard.sh"
    path.write_text(text.replace(start, f"{measured} &"))
    return path


def through_a_bucket(folder: Path, measured: str) -> Path:
    work = str(folder / "work")
    return script(folder, measured, "--results", "s3://bench/fleet", "--work", work)


def ran(path: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(path)], env={**os.environ, **TASK}, capture_output=True, text=True
    )


def place(path: Path) -> Path:
    """Where the script measures."""
    [line] = [line for line in path.read_text().splitlines() if line.startswith('fleet="')]
    return Path(line.split('"')[1].replace("$SLURM_ARRAY_TASK_ID", TASK["SLURM_ARRAY_TASK_ID"]))


@pytest.mark.parametrize(("code", "stays"), [(0, False), (1, True), (2, True), (5, True)])
def test_only_a_shard_that_is_whole_is_taken_away(tmp_path: Path, code: int, stays: bool) -> None:
    """An engine that fails ends with 1: what was measured before must outlive it."""
    path = through_a_bucket(tmp_path, f"(exit {code})")
    assert ran(path).returncode == code
    assert (place(path) / "fleet.yaml").is_file() == stays


@pytest.mark.parametrize(("code", "ended"), [(0, 0), (1, 0), (2, 2)])
def test_in_a_shared_folder_a_complete_run_is_no_failure(
    tmp_path: Path, code: int, ended: int
) -> None:
    path = script(tmp_path, f"(exit {code})")
    assert ran(path).returncode == ended
    assert (tmp_path / "fleet" / "fleet.yaml").is_file()


def test_a_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    path = through_a_bucket(tmp_path, 'touch "$fleet/measured"')
    if os.getuid() != 0:
        pytest.skip("only root can make a folder another user's")
    place(path).mkdir(parents=True)
    os.chown(place(path), 1000, 1000)
    _refused(path, place(path))


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    path = through_a_bucket(tmp_path, 'touch "$fleet/measured"')
    (tmp_path / "elsewhere").mkdir()
    place(path).parent.mkdir()
    place(path).symlink_to(tmp_path / "elsewhere")
    _refused(path, tmp_path / "elsewhere")


def _refused(path: Path, folder: Path) -> None:
    done = ran(path)
    assert done.returncode == 3
    assert "is not a folder of this user" in done.stderr
    assert not any(folder.iterdir())


def test_what_a_requeued_task_finds_is_closed_to_others(tmp_path: Path) -> None:
    path = through_a_bucket(tmp_path, 'stat -c "mode %a" "$fleet"')
    place(path).mkdir(parents=True)
    place(path).chmod(0o777)
    done = ran(path)
    assert done.returncode == 0, done.stderr
    assert "mode 700\n" in done.stdout
