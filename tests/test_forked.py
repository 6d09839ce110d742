"""A command that is forked does what one does that is started, and begins as clean."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tests import forked
from tests.runs import Made, make_run


@pytest.mark.parametrize(
    "words",
    [["--version"], ["--devise"], ["verify", "nowhere"], ["verify", "run"], ["report", "run"]],
    ids=" ".join,
)
def test_it_says_and_returns_the_same(tmp_path: Path, words: list[str]) -> None:
    make_run(tmp_path / "run", Made(lengths=(64,)))
    begun = subprocess.run(
        [sys.executable, "-m", "nsabench", *words], cwd=tmp_path, capture_output=True, text=True
    )
    done = forked.run(words, tmp_path, os.environ, 60)
    said = (done.returncode, done.stdout, done.stderr)
    assert said == (begun.returncode, begun.stdout, begun.stderr)


def test_what_would_show_in_a_process_begun_anew_is_begun_anew() -> None:
    may = forked.can_be_forked
    begun_with = forked.begun_with
    assert may(begun_with)
    assert may({**begun_with, "XDG_CACHE_HOME": "/elsewhere"})
    assert not may({**begun_with, "PYTHONWARNINGS": "error"})
    assert not may({**begun_with, "LC_ALL": "tr_TR"})
    assert not may({**begun_with, "NSABENCH_SIGNING_KEY": "a secret"})


def test_what_an_earlier_test_compiled_has_no_template_begun_anew() -> None:
    """All that came after it in a process took seconds longer."""
    before = forked.imported_with
    assert forked.is_as_imported({**before, "TORCHINDUCTOR_CACHE_DIR": "/tmp/torchinductor_me"})
    assert not forked.is_as_imported({**before, "TORCHINDUCTOR_MAX_AUTOTUNE": "1"})
    assert not forked.is_as_imported({**before, "CUDA_VISIBLE_DEVICES": "1"})


def test_each_has_a_mark_of_its_own(tmp_path: Path) -> None:
    """A reaper ends what carries the mark of a supervisor that died, and nothing of another's."""
    kernels = tmp_path / "mine.py"
    kernels.write_text(
        "import os, pathlib\n"
        "path = pathlib.Path(__file__).with_name('marks')\n"
        "path.open('a').write(os.environ['NSABENCH_WORKER_OF'] + '\\n')\n"
        "raise ValueError\n"
    )
    for _ in range(2):
        words = ["all", "--no-sandbox", "--device", "cpu", "--kernels", str(kernels)]
        done = forked.run([*words, "selection_rows"], tmp_path, os.environ, 120)
        assert done.returncode == 2, done.stderr
    marks = set((tmp_path / "marks").read_text().split())
    assert len(marks) == 2


def test_a_command_ends_with_its_shim(tmp_path: Path) -> None:
    kernels = tmp_path / "mine.py"
    kernels.write_text(
        "import os, pathlib, time\n"
        "path = pathlib.Path(__file__).with_name('pid')\n"
        "path.with_name('new').write_text(str(os.getppid()))\n"
        "path.with_name('new').rename(path)\n"
        "time.sleep(600)\n"
    )
    words = ["run", "--no-sandbox", "--device", "cpu", "--kernels", kernels, "selection_rows"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with subprocess.Popen([forked.shim(), *words], cwd=tmp_path, **quiet) as shim:
        while not (tmp_path / "pid").exists():
            assert shim.poll() is None
            time.sleep(0.02)
        command = psutil.Process(int((tmp_path / "pid").read_text()))
        assert command.pid != shim.pid
        shim.kill()
    command.wait(20)


def test_a_shim_returns_what_its_command_does(tmp_path: Path) -> None:
    done = subprocess.run([forked.shim(), "--devise"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 2 and "--devise" in done.stderr


def test_where_what_it_is_forked_from_is_gone_it_begins_anew(tmp_path: Path) -> None:
    script = tmp_path / "nsabench"
    script.write_text(forked.SHIM.format(python=sys.executable, address="\0nobody-is-there"))
    script.chmod(0o755)
    done = subprocess.run([script, "--version"], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "") and "version" in done.stdout
