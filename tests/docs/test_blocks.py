"""Run the blocks of code in the pages that have a block to be run.

The comment before a block says what this test does. `<!-- file: NAME -->`: write the block to NAME.
`<!-- runnable -->`: run it and expect the exit code 0, or as in `<!-- runnable: exits 0 or 3;
prints: TEXT -->`. `<!-- needs: WHAT -->`: nothing, since not every machine can run it. `<!-- shows:
WHAT -->`: nothing, since it is output.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests import forked

ROOT = Path(__file__).parents[2]
RUN = "<!-- runnable"
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if RUN in page.read_text()
)
MARK = r"<!-- (file|runnable|needs|shows):? *([^>]*?) *-->\s*\n"
BLOCK = re.compile(MARK + r"( *)```\w*\n(.*?)\n\3```", re.S)
NEEDS = {"a fresh clone and a network", "a GPU", "docker and a GPU"}
# A `python` whose Triton interpreter is faster, as in all tests. torchrun starts the program that
# PYTHON_EXEC names.
PYTHON = f"""#!{sys.executable}
import runpy, sys
runpy.run_path({str(ROOT / "kernels/tests/quick_interpreter.py")!r})["quicken"]()
sys.argv = [word for word in sys.argv[1:] if word != "-u"]
sys.path[0] = "."
runpy.run_path(sys.argv[0], run_name="__main__")
"""
NETWORK = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9"}


def test_the_pages_that_must_run_do():
    assert {
        "README.md",
        "docs/tutorial/first-verdict.md",
        "docs/how-to/measure.md",
        "docs/how-to/own-kernel.md",
        "docs/how-to/use-the-kernels.md",
    } <= set(PAGES)


# A page holds several runs, each of which has a time limit of its own.
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("page", PAGES)
def test_the_blocks_do_what_they_say(page, tmp_path):
    for name in ("tests", "matrices", "docs"):
        (tmp_path / name).symlink_to(ROOT / name)
    python = tmp_path / "bin" / "python"
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    blocks = BLOCK.findall((ROOT / page).read_text())
    assert blocks, f"{page} has no block to run"
    for kind, says, indent, text in blocks:
        body = re.sub(rf"^{indent}", "", text, flags=re.M) + "\n"
        if kind == "file":
            (tmp_path / says).write_text(body)
        elif kind == "runnable":
            run(body, says, tmp_path)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_run_or_says_what_it_needs(page):
    text = (ROOT / page).read_text()
    fences = len(re.findall(r"^ *```", text, re.M)) // 2
    marked = BLOCK.findall(text)
    assert len(marked) == fences, f"{page}: a block without a mark"
    assert {says for kind, says, _, _ in marked if kind == "needs"} <= NEEDS
    assert any(kind == "runnable" for kind, _, _, _ in marked)


def run(script, says, folder):
    python = folder / "bin" / "python"
    folders = [forked.shim().parent, python.parent, Path(sys.executable).parent, os.environ["PATH"]]
    done = subprocess.run(
        ["sh", "-eu"],
        input=script,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=200,
        env={
            **os.environ,
            **NETWORK,
            "PATH": os.pathsep.join(map(str, folders)),
            "PYTHON_EXEC": str(python),
        },
    )
    exits = re.search(r"exits ([\d or]+)", says)
    allowed = {int(code) for code in re.findall(r"\d+", exits[1])} if exits else {0}
    assert done.returncode in allowed, f"{script}\n{done.stdout}\n{done.stderr}"
    for text in re.findall(r"prints: ([^;]+)", says):
        assert text.strip() in done.stdout + done.stderr, f"{script}\n{done.stdout}"
