"""The site of the manual builds without a warning, so every link in it leads somewhere."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_manual_builds_without_a_warning():
    done = subprocess.run(
        [sys.executable, "docs/manual.py"], cwd=ROOT, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    site = ROOT / "results" / "manual" / "site"
    assert (site / "index.html").exists()
    assert (site / "search" / "search_index.json").exists()
