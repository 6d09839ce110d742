"""A command that is forked does what one does that is started, and begins as clean."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
