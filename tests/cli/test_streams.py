"""A run goes on if the reader of its output ends, and commands accept closed streams."""

import os
import signal
import subprocess
import sys
import time

import pytest

from tests import forked
from tests.cli.conftest import complete, start
from tests.cli.conftest import nsabench as nsabench
from tests.cli.conftest import tiny as tiny

NSABENCH = [sys.executable, "-m", "nsabench"]


def test_a_run_goes_on_without_its_reader(tmp_path, tiny):
    words = ("all", tiny, "--device", "cpu", "--where", "L<=8")
    process = start(tmp_path, *words, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stderr is not None
    assert process.stdout.readline()
    process.stdout.close()
    said = process.stderr.read()
    assert process.wait() in (0, 1), said
    assert said.count("The run goes on without it") == 1 and "Traceback" not in said
    # The default folder.
    assert list((tmp_path / "results").glob("2*/manifest.dsse.json"))


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_closed_streams_are_no_fault(tmp_path, tiny, closed):
    """A file that is opened later must not get the number of a closed stream: output would go into
    it."""
    words = ["plan", str(tiny), "--device", "cpu"] if closed == ">&-" else ["explain", "same"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", *NSABENCH, *words],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert (done.returncode in (0, 1), done.stdout, done.stderr) == (True, "", "")


def test_a_run_that_was_killed_before_it_measured_is_begun_again(tmp_path, tiny, nsabench):
    words = ("all", str(tiny), "--device", "cpu", "--where", "L<=8")
    run = tmp_path / "run"
    (run / "logs").mkdir(parents=True)  # killed before it wrote its plan
    (run / "plan.tmp").write_text("{")
    process = forked.Command((*words, "--out", str(run)), tmp_path, os.environ)
    # While it clears the folder, it holds a log that it removes.
    while not ((run / "plan.json").exists() and (run / "log.jsonl").exists()):
        assert process.poll() is None
        time.sleep(0.01)
    process.kill()
    process.wait()
    assert (run / "log.jsonl").read_bytes() == b""
    alone = nsabench("all", "--resume", run)
    assert alone.returncode == 2 and "name the matrices" in alone.stderr
    complete(nsabench(*words, "--resume", run))
    again = nsabench(*words, "--out", run)
    assert again.returncode == 2 and "is not empty" in again.stderr


def test_an_interrupted_run_that_measured_nothing_leaves_nothing(tmp_path, tiny):
    process = start(tmp_path, "all", tiny, "--device", "cpu", "--out", "run")
    while not (tmp_path / "run" / "log.jsonl").exists():
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert (process.returncode, said.strip()) == (130, "nsabench: interrupted; nothing was kept.")
    assert not (tmp_path / "run").exists()
