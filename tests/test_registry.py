"""Sources of implementations are listed without imports, and refused if they changed or are
faulty."""

import subprocess
import sys
from pathlib import Path

import pytest

from nsabench import registry
from nsabench.running import process_tree
from nsabench.running.planner import make_plan
from nsabench.running.process_tree import Program
from nsabench.sources import digest_packages

MINE = """
from nsabench import implementation
@implementation(op="selection_rows", name="mine", devices=("cpu",))
def mine(q, k, v, *, sm_scale):
    return q
"""


def load_in_a_process(kernels, expected):
    """Load implementations in a new process. Return what it prints: their sources or the error, and
    whether nsa_kernels was imported."""
    code = (
        "import sys, pathlib\n"
        "from nsabench import registry\n"
        "from nsabench.errors import UsageError\n"
        f"kernels = {str(kernels)!r} if {kernels is not None} else None\n"
        "try:\n"
        f"    found = registry.load(kernels and pathlib.Path(kernels), {expected!r})\n"
        "    print(*sorted({i.source for i in found}))\n"
        "except UsageError as error:\n"
        "    print('refused:', error, error.remedy)\n"
        "print('nsa_kernels' in sys.modules)\n"
    )
    # Fork it as a worker is: torch is imported, but no module that registers implementations.
    process_tree.adopt_orphans()
    snippet = Program("tests.snippet", [], process_tree.make_environment("cpu"))
    forked = process_tree.start(snippet)
    with forked.stdin, forked.stdout, forked.stderr:
        forked.stdin.write(code.encode())
        forked.stdin.close()
        said, wrong = forked.stdout.read().decode(), forked.stderr.read().decode()
    assert forked.wait(200) == 0, wrong
    return said


def test_sources_are_told_without_importing_them():
    code = (
        "import sys\nfrom nsabench import registry\n"
        "print(registry.sources(), registry.distributions())\n"
        "assert 'nsa_kernels' not in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr
    assert set(registry.sources()) == set(registry.distributions()) == {"nsabench", "nsa-kernels"}
    assert all(len(digest) == 64 for digest in registry.sources().values())


def test_only_what_is_expected_is_imported():
    shipped = {"nsabench": registry.sources()["nsabench"]}
    assert load_in_a_process(None, shipped) == "nsabench\nFalse\n"


def test_a_package_that_changed_is_refused(tmp_path):
    said = load_in_a_process(None, {**registry.sources(), "nsa-kernels": "0" * 64})
    assert "refused: nsa-kernels is not what it was when the run began" in said


def test_a_users_file_that_changed_is_refused(tmp_path):
    kernels = tmp_path / "mine.py"
    kernels.write_text(MINE)
    expected = {k: v for k, v in registry.sources(kernels).items() if k != "nsa-kernels"}
    assert "mine.py@" in load_in_a_process(kernels, expected)
    kernels.write_text(MINE + "# changed\n")
    assert f"refused: {kernels} is not what it was" in load_in_a_process(kernels, expected)


@pytest.mark.parametrize("change", ["content", "name", "new file"])
def test_a_digest_sees_every_change_of_a_package(tmp_path, monkeypatch, change):
    package = tmp_path / "some_package_of_a_test"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "a.py").write_text("x = 1\n")
    monkeypatch.syspath_prepend(tmp_path)
    before = digest_packages({package.name})
    (package / "inner" / "__pycache__").mkdir()
    (package / "inner" / "__pycache__" / "a.pyc").write_bytes(b"compiled")
    assert digest_packages({package.name}) == before
    if change == "content":
        (package / "inner" / "a.py").write_text("x = 2\n")
    elif change == "name":
        (package / "inner" / "a.py").rename(package / "inner" / "b.py")
    else:
        (package / "inner" / "table.json").write_text("{}")
    assert digest_packages({package.name}) != before


def test_a_file_that_is_gone_is_to_be_put_back_where_it_was(tmp_path):
    kernels = tmp_path / "mine.py"
    kernels.write_text(MINE)
    expected = registry.sources(kernels)
    kernels.unlink()
    said = load_in_a_process(kernels, expected)
    assert f"refused: {kernels} cannot be read: No such file" in said
    assert "start a new run" in said
    assert "nsabench init" in load_in_a_process(kernels, None)


def test_a_run_may_be_resumed_from_another_folder(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE)
    monkeypatch.chdir(tmp_path)
    plan = make_plan(["quick"], "cpu", Path("mine.py"))
    assert plan.kernels == str(tmp_path / "mine.py")
    assert "mine" in {i.name for i in plan.implementations}


def test_a_file_beside_a_kernels_file_is_imported_by_its_name(tmp_path):
    (tmp_path / "mine.py").write_text("import helper\n" + MINE)
    said = load_in_a_process(tmp_path / "mine.py", None)
    assert "No module named 'helper'" in said and "put it beside the file" in said
    (tmp_path / "helper.py").write_text("x = 1\n")
    assert "mine.py@" in load_in_a_process(tmp_path / "mine.py", None)


@pytest.mark.parametrize("init", ["", "from .rows import mine\n"])
def test_a_file_of_a_package_may_import_relatively(tmp_path, init):
    """Also if the package imports the file: its kernels are registered once."""
    inner = tmp_path / "my_kernels" / "rows"
    inner.mkdir(parents=True)
    (inner.parent / "__init__.py").write_text("")
    (inner.parent / "tiles.py").write_text("TILE = 64\n")
    (inner / "__init__.py").write_text(init.replace(".rows", ".mine"))
    (inner / "mine.py").write_text("from ..tiles import TILE\nfrom . import __name__\n" + MINE)
    said = load_in_a_process(inner / "mine.py", None)
    assert "mine.py@" in said and "refused" not in said
    (inner / "__init__.py").write_text("from .mine import mine\n")
    assert "__init__.py@" in load_in_a_process(inner / "__init__.py", None)


@pytest.mark.parametrize("folder", ["plain", "torch"])
def test_a_relative_import_that_cannot_work_has_a_remedy_that_does(tmp_path, folder):
    """A plain folder is not a package, and a folder named like an installed module does not replace
    it."""
    here = tmp_path / folder
    here.mkdir()
    (here / "helper.py").write_text("x = 1\n")
    (here / "mine.py").write_text("from .helper import x\n" + MINE)
    if folder == "torch":
        (here / "__init__.py").write_text("")
    said = load_in_a_process(here / "mine.py", None)
    assert "relative import" in said and "give its folder an __init__.py" in said
    (here / "mine.py").write_text("from helper import x\n" + MINE)
    assert "mine.py@" in load_in_a_process(here / "mine.py", None)
    here = here.rename(tmp_path / "kernels_of_mine")
    (here / "__init__.py").write_text("")
    (here / "mine.py").write_text("from .helper import x\n" + MINE)
    assert "mine.py@" in load_in_a_process(here / "mine.py", None)


def test_what_an_op_leaves_out_at_times_needs_a_default(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from nsabench import implementation\n"
        '@implementation(op="sliding_window", name="mine")\n'
        "def mine(q, k, v, cu_seqlens, *, window, sm_scale, max_seqlen):\n    return q\n"
    )
    said = load_in_a_process(tmp_path / "mine.py", None)
    assert "mine(q, k, v, cu_seqlens=None, *, window, sm_scale, max_seqlen)" in said


def test_a_control_names_a_check_that_can_catch_it(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from nsabench.registry import control\n"
        '@control("selection_rows", caught_by="rofline")\n'
        "def cheat(honest, *tensors, sm_scale):\n    return honest(*tensors, sm_scale=sm_scale)\n"
    )
    said = load_in_a_process(tmp_path / "mine.py", None)
    assert "caught_by" in said and "'roofline'" in said


@pytest.mark.parametrize(
    ("declared", "sentence"),
    [
        ('role="alternative"', "has the role alternative and computes ''"),
        ('computes="causal_attention"', "has the role candidate and computes 'causal_attention'"),
        ('role="alternative", computes="nsa_attention"', "nsa_attention is that op"),
        ('role="alternative", computes="sliding_windw"', "there is no op 'sliding_windw'"),
        ('role="alternative", computes="selection_rows"', "has the size N, which nsa_attention"),
    ],
)
def test_an_alternative_says_which_other_op_it_computes(tmp_path, declared, sentence):
    (tmp_path / "mine.py").write_text(
        "from nsabench import implementation\n"
        f'@implementation(op="nsa_attention", name="mine", {declared})\n'
        "def mine(q, k, v, cu_seqlens=None, *, sm_scale, max_seqlen):\n    return q\n"
    )
    assert sentence in load_in_a_process(tmp_path / "mine.py", None)


def test_an_alternative_is_called_as_the_op_that_it_computes(tmp_path):
    text = (
        "from nsabench import implementation\n"
        '@implementation(op="nsa_attention", name="mine", role="alternative", '
        'computes="causal_attention")\n'
        "def mine(q, k, v, cu_seqlens=None, *, sm_scale, max_seqlen{more}):\n    return q\n"
    )
    (tmp_path / "mine.py").write_text(text.format(more=""))
    assert "mine.py@" in load_in_a_process(tmp_path / "mine.py", None)
    (tmp_path / "mine.py").write_text(text.format(more=", window"))
    said = load_in_a_process(tmp_path / "mine.py", None)
    assert "mine(q, k, v, cu_seqlens=None, *, sm_scale, max_seqlen)" in said
