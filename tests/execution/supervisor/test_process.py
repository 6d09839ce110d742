"""What a worker leaves behind is found, however it hides."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from nsabench.execution.protocol import Discover
from nsabench.execution.supervisor import orphan_reaper, process, program, scratch
from nsabench.execution.supervisor.loss import WorkerBrokeProtocol
from nsabench.execution.supervisor.process import WorkerProcess
from nsabench.execution.supervisor.program import measuring

UNREADABLE = """
import ctypes, os, sys, time
import psutil
from nsabench.execution.supervisor import process

PR_SET_DUMPABLE = 4
if os.getuid() == 0:  # root reads everybody's environment; a run seldom is root
    os.setuid(65534)
process._adopt_orphans()
born = time.time()
said, says = os.pipe()
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        os.write(says, b"%d" % os.getpid())
        time.sleep(60)
    os._exit(0)
os.wait()
orphan = psutil.Process(int(os.read(said, 20)))
try:
    orphan.environ()
    print("readable")
except psutil.AccessDenied:
    process.reap_orphans(set(), born)
    print("left" if orphan.is_running() else "killed")
orphan.kill() if orphan.is_running() else None
"""

FORKING = """
import os, time
import psutil
from nsabench.execution.supervisor import process

process._adopt_orphans()
born = time.time()
said, says = os.pipe()
if os.fork() == 0:
    os.setsid()
    os.write(says, b"%d" % os.getpid())
    until = time.monotonic() + 60
    while time.monotonic() < until:
        if os.fork():
            os._exit(0)
        time.sleep(0.002)
    os._exit(0)
group = int(os.read(said, 20))
os.close(says)
process.reap_orphans(set(), born)
try:
    os.killpg(group, 9)
    print("left")
except ProcessLookupError:
    print("killed")
"""


def end_of(script: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout.strip()


def test_an_orphan_whose_environment_may_not_be_read_is_killed() -> None:
    end = end_of(UNREADABLE)
    if end == "readable":
        pytest.skip("this user may read every environment")
    assert end == "killed"


def test_orphans_that_fork_all_the_time_are_killed() -> None:
    assert end_of(FORKING) == "killed"


def test_the_reaper_is_no_orphan(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was started anew while a worker lived is a child in a session of its own."""
    born = time.time()
    monkeypatch.setattr(process, "_reaper", None)
    process._start_reaper()
    reaper = process._reaper
    assert reaper is not None
    siblings = {child.pid for child in psutil.Process().children()} - {reaper.pid}
    process.reap_orphans(siblings, born)
    assert reaper.poll() is None
    reaper.communicate(timeout=60)


def test_the_reaper_looks_again_for_what_shows_no_mark_at_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As a process does for a moment while it starts a program."""
    mark = b"NSABENCH_TEST_MARK=1"
    hidden = (
        "import os, sys; sys.stdin.read(); "
        'os.execve("/bin/sleep", ["sleep", "60"], {"NSABENCH_TEST_MARK": "1"})'
    )
    worker = psutil.Popen(["sleep", "60"], start_new_session=True)
    orphan = psutil.Popen(
        [sys.executable, "-S", "-c", hidden], env={}, stdin=subprocess.PIPE, start_new_session=True
    )

    def show(seconds: float) -> None:
        """In place of a pause: in the first, go on until the mark can be seen."""
        if orphan.stdin.closed:  # it was seen and killed; it may be anything between there and gone
            return
        orphan.stdin.close()
        environment = Path(f"/proc/{orphan.pid}/environ")
        while mark not in environment.read_bytes():
            assert orphan.poll() is None, "it ended by itself"
            os.sched_yield()

    monkeypatch.setattr(orphan_reaper, "time", SimpleNamespace(sleep=show))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"+%d\n" % worker.pid)))
    orphan_reaper.main(mark)
    ends = worker.wait(60), orphan.wait(60)
    assert ends == (-9, -9)


def test_a_worker_that_times_kernels_never_interprets_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert "TRITON_INTERPRET" not in program.worker_environment("cuda")
    assert program.worker_environment("cpu")["TRITON_INTERPRET"] == "1"


@pytest.mark.parametrize(("most_bytes", "most_files"), [(1 << 16, 99), (1 << 30, 4)])
def test_a_scratch_holds_no_more_than_it_may(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, most_files: int
) -> None:
    monkeypatch.setattr(scratch, "MOST_BYTES", most_bytes)
    monkeypatch.setattr(scratch, "MOST_FILES", most_files)
    (tmp_path / "deep").mkdir()
    for number in range(3):
        (tmp_path / "deep" / str(number)).write_bytes(bytes(1 << 13))
    with (tmp_path / "holes").open("wb") as sparse:
        sparse.truncate(1 << 40)  # takes no room
    (tmp_path / "holes").rename(tmp_path / "deep" / "0")
    assert not scratch.holds_more(tmp_path)
    (tmp_path / "more").write_bytes(bytes(1 << 16))
    assert scratch.holds_more(tmp_path)


def test_folders_and_links_count_however_deep(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them than Python calls itself; the paths are short enough to be read."""
    made = scratch.Scratch()
    folder = nested = Path(made.path)
    for _ in range(1500):
        nested = nested / "d"
        nested.mkdir()
    nested.joinpath("link").symlink_to(folder)
    assert not scratch.holds_more(folder)
    with monkeypatch.context() as patch:
        patch.setattr(scratch, "MOST_BYTES", 1501 * scratch.ENTRY_BYTES - 1)
        assert scratch.holds_more(folder)
    monkeypatch.setattr(scratch, "MOST_FILES", 1500)
    assert scratch.holds_more(folder)
    made.remove()
    assert not folder.exists()


def test_what_cannot_be_read_is_too_much(tmp_path: Path) -> None:
    """Folders in folders, to a path that is too long."""
    before = os.open(".", os.O_RDONLY)
    try:
        os.chdir(tmp_path)
        for _ in range(20):
            Path("d" * 250).mkdir()
            os.chdir("d" * 250)
    finally:
        os.fchdir(before)
        os.close(before)
    assert scratch.holds_more(tmp_path)


def test_to_walk_through_a_scratch_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "x").touch()
    assert not scratch.holds_more(tmp_path)
    assert not scratch.holds_more(tmp_path / "gone")
    monkeypatch.setattr(scratch, "WALKING_S", -1.0)
    assert scratch.holds_more(tmp_path)


def test_a_scratch_of_several_workers_is_walked_through_by_one(tmp_path: Path) -> None:
    folder = str(tmp_path)
    assert [scratch.begins_walk(folder) for _ in range(3)] == [True, False, False]
    assert scratch.begins_walk(f"{folder}/another")


def test_what_fills_its_scratch_is_ended(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(scratch, "WALK_EVERY_S", 0.0)
    monkeypatch.setattr(scratch, "MOST_BYTES", 1)
    (tmp_path / "x").write_bytes(b"x")
    worker = WorkerProcess(replace(measuring("cpu", None), scratch=str(tmp_path)))
    with pytest.raises(WorkerBrokeProtocol, match="start") as lost:
        worker._weighed_at = 0.0
        list(worker.ask(Discover(), 60))
    assert "to its scratch" in lost.value.how


def test_what_was_printed_before_an_answer_is_in_the_log_once_it_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However late the thread comes to it that reads what a worker prints."""
    monkeypatch.setattr(WorkerProcess, "_drain_stderr", lambda self: None)
    kernels = tmp_path / "mine.py"
    kernels.write_text(
        "from nsabench import implementation\n\n"
        '@implementation(op="selection_rows", name="mine", devices=("cpu",))\n'
        "def mine(q, k, v, *, sm_scale): ...\n\n"
        "print('a word of mine')\n"
    )
    worker = WorkerProcess(measuring("cpu", kernels))
    try:
        list(worker.ask(Discover(), 60))
        assert "a word of mine" in worker.log.text()
    finally:
        worker.stop()


def test_processes_that_got_away_from_a_worker_count(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who forks twice leaves its children to the supervisor."""
    monkeypatch.setattr(process, "MOST_PROCESSES", 3)
    worker = WorkerProcess(measuring("cpu", None))
    try:
        orphans = {psutil.Popen(["sleep", "60"], start_new_session=True).pid for _ in range(4)}
        assert orphans <= worker._started()
        worker._weighed_at = 0.0
        with pytest.raises(WorkerBrokeProtocol) as lost:
            list(worker.ask(Discover(), 60))
        assert "started more than 3 processes" in lost.value.how
        assert not orphans & set(psutil.pids())
    finally:
        worker.stop()


def test_what_a_worker_starts_competes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """A helper that a candidate starts may be on the device."""
    script = "import subprocess; print(subprocess.Popen(['sleep', '60']).pid, flush=True); input()"
    command = [sys.executable, "-S", "-c", script]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        helper = psutil.Process(int(worker.stdout.readline()))
        monkeypatch.setattr(process, "_workers", {worker.pid})
        owned = process.own()
        helper.kill()
        worker.communicate(b"\n")
    assert worker.pid in owned and helper.pid not in owned
