"""`--resume DIR` with a plan: the same command starts a run, continues it, and leaves it alone."""

import os
import time
from pathlib import Path

from tests import forked
from tests.cli.conftest import Nsabench, complete


def words(tiny: Path, run: Path) -> tuple[str, ...]:
    return ("all", str(tiny), "--device", "cpu", "--where", "L<=16", "--resume", str(run))


def content(run: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in run.rglob("*") if path.is_file()}


def test_the_same_command_starts_continues_and_leaves_alone(
    tmp_path: Path, tiny: Path, nsabench: Nsabench
) -> None:
    run = tmp_path / "run"
    process = forked.Command(words(tiny, run), tmp_path, os.environ)
    log = run / "log.jsonl"
    while not log.exists() or b'"kind":"ended"' not in log.read_bytes():
        assert process.poll() is None
        time.sleep(0.02)
    process.kill()
    process.wait()
    measured = log.read_bytes().rpartition(b"\n")[0]
    complete(nsabench(*words(tiny, run)))
    assert log.read_bytes().startswith(measured)
    before = content(run)
    complete(nsabench(*words(tiny, run)))
    assert content(run) == before

    other = nsabench(*words(tiny, run), "--margin", "1.5")
    assert other.returncode == 2
    assert "holds a run of another plan: margin differ" in other.stderr
    assert content(run) == before


def test_two_folders_are_refused(tiny: Path, nsabench: Nsabench) -> None:
    done = nsabench("all", tiny, "--out", "a", "--resume", "b")
    assert done.returncode == 2 and "--out and --resume" in done.stderr
