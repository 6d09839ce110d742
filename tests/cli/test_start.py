"""The first commands of a new user: list what exists, and create a kernel file."""

import json
import re

import pytest

from nsabench import ops
from nsabench.output import templates
from nsabench.planning import matrix
from tests.commands import nsabench as nsabench


@pytest.mark.full
def test_check_says_right_of_every_first_kernel(tmp_path, nsabench):
    """The matrix of `init` has as many cases as `check` has shapes. In one of them, kernels easily
    forget the tails."""
    for op in map(ops.get, ops.shipped()):
        (tmp_path / "mine.yaml").write_text(templates.first_matrix(op, "mine"))
        cases = [case for loaded in matrix.load(tmp_path / "mine.yaml") for case in loaded.cases]
        assert len(cases) == len(op.check_shapes["cpu"])
    texts = [templates.first_kernel(ops.get(name), f"my_{name}") for name in ops.shipped()]
    (tmp_path / "mine.py").write_text("\n".join(texts))
    done = nsabench("check", "mine.py", "--device", "cpu", "--json")
    assert done.returncode == 0, done.stdout + done.stderr
    answers = json.loads(done.stdout)["answers"]
    assert {a["op"] for a in answers if a["right"]} == set(ops.shipped())


@pytest.mark.parametrize("name", ops.shipped())
def test_the_first_kernel_in_cuda_compiles(name):
    core = pytest.importorskip("cuda.core")
    pytest.importorskip("cuda.bindings.nvrtc")
    text = templates.first_kernel(ops.get(name), "mine", cuda=True)
    compile(text, "mine.py", "exec")
    source = text.split('"""')[1]
    macros = [("GROUP", "4"), ("D", "72"), ("DV", "40")]
    options = core.ProgramOptions(arch="sm_90", define_macro=macros)
    assert core.Program(source, "c++", options).compile("cubin").code


def test_what_init_writes_is_checked_as_it_says(tmp_path, nsabench, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # `check` keeps baselines there
    done = nsabench("init", "selection_rows", "first.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["first.py", "first.yaml", "next: nsabench check first.py"]
    shown = nsabench("check", "first.py", "--device", "cpu", "--shape", "N=2,H=1,D=16,L=8")
    assert shown.returncode == 0 and "RIGHT" in shown.stdout, shown.stdout + shown.stderr
    plan = nsabench("plan", "first.yaml", "--kernels", "first.py", "--only", "first")
    assert plan.returncode == 0 and "candidate" in plan.stdout
    before = (tmp_path / "first.py").read_text()
    again = nsabench("init", "selection_rows", "first.py")
    assert again.returncode == 2 and "is there already" in again.stderr
    assert (tmp_path / "first.py").read_text() == before
    assert nsabench("init", "selection_row", "x.py").returncode == 2
    assert "cannot name" in nsabench("init", "selection_rows", "my-kernel.py").stderr


@pytest.mark.parametrize("name", ops.shipped())
def test_the_lines_for_a_gpu_ask_for_several_lengths(tmp_path, name):
    op = ops.get(name)
    sizes = re.findall(r"^#(  .*)$", templates.first_matrix(op, "mine"), re.M)
    (tmp_path / "gpu.yaml").write_text("\n".join([f"op: {name}", "axes:", *sizes]))
    [loaded] = matrix.load(tmp_path / "gpu.yaml")
    assert len({case.shape[op.length_axis] for case in loaded.cases}) == 4


def test_lists(tmp_path, nsabench):
    def rows(*arguments):
        return json.loads(nsabench("list", *arguments, "--json").stdout)

    assert {row["op"] for row in rows("ops")} == set(ops.names())
    assert {"quick", "selection_rows"} <= {row["matrix"] for row in rows("matrices")}
    (tmp_path / "own.py").write_text(templates.first_kernel(ops.get("selection_rows"), "own"))
    found = rows("implementations", "--kernels", "own.py")
    [own] = [row for row in found if row["implementation"] == "own"]
    assert (own["op"], own["role"]) == ("selection_rows", "candidate")
    text = nsabench("list", "ops").stdout
    assert "selection_rows" in text and "dense span of L keys" in text
