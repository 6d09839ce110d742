"""What was compiled of the same content is not compiled again, and whatever changed is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nsabench.model.vocabulary import Status
from nsabench.preflight import compile_all, tritons
from nsabench.preflight.architectures import ARCHITECTURES
from nsabench.preflight.compiled_launch import CompiledLaunch
from nsabench.preflight.known import Known
from nsabench.preflight.messages import Build, Built, Foreign, Launch, RecordedLaunches
from nsabench.preflight.run import Order, run

pytest.importorskip("triton")

KERNELS = """
import torch, triton
import triton.language as tl
from nsabench import implementation

WIDTH = tl.constexpr(16)

@triton.jit
def scaled(x):
    return x * 2.0

@triton.jit
def direct(x_ptr, n):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, tl.load(x_ptr + at, at < n), at < n)

@triton.jit
def calls(x_ptr, n):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, scaled(tl.load(x_ptr + at, at < n)), at < n)

@triton.jit
def reads(x_ptr, n):
    at = tl.arange(0, WIDTH)
    tl.store(x_ptr + at, 3.0, at < n)

@triton.jit
def handed(x_ptr, n, apply: tl.constexpr):
    at = tl.arange(0, 16)
    tl.store(x_ptr + at, apply(tl.load(x_ptr + at, at < n)), at < n)

@triton.jit
def fails(x_ptr, n):
    at = tl.arange(0, 15)
    tl.store(x_ptr + at, 1.0, at < n)

@implementation(op="selection_rows", name="all_of_them", role="candidate", devices=("cuda",))
def all_of_them(q, k, v, *, sm_scale):
    for kernel in (direct, calls, reads, fails):
        kernel[(1,)](q, 16)
    handed[(1,)](q, 16, scaled)
    return torch.empty_like(q)
"""


CONTENT = "ab12" * 16
LAUNCH = Launch(
    key="k", op="o", implementation="i", kernel="f", signature="", constants="", options="",
    example="", content=CONTENT,
)  # fmt: skip


def compiled(kernels: Path, matrix: Path) -> dict[str, CompiledLaunch]:
    order = Order([ARCHITECTURES["sm_90"]], matrices=[str(matrix)], kernels=kernels, known=True)
    return {launch.kernel: launch for launch in run(order)}


def test_only_what_changed_is_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where a function changed that a kernel calls or is handed, or a value that it reads."""
    monkeypatch.setenv(tritons.CACHE_VARIABLE, str(tmp_path / "cache"))
    kernels, matrix = tmp_path / "own.py", tmp_path / "tiny.yaml"
    kernels.write_text(KERNELS)
    matrix.write_text("op: selection_rows\naxes: {N: 4, H: 4, D: 64, L: 64}\n")
    first = compiled(kernels, matrix)
    assert {name for name, one in first.items() if one.status is Status.OK} == first.keys() - {
        "fails"
    }
    again = compiled(kernels, matrix)
    # No two compilations take the same time to the nanosecond.
    assert {n for n, one in again.items() if one.compile_s != first[n].compile_s} == {"fails"}
    assert {n: one.code_bytes for n, one in again.items()} == {
        n: one.code_bytes for n, one in first.items()
    }
    kernels.write_text(
        KERNELS.replace("x * 2.0", "x * x").replace("constexpr(16)", "constexpr(32)")
    )
    changed = compiled(kernels, matrix)
    same = {n for n, one in changed.items() if one.compile_s == first[n].compile_s}
    assert same == {"direct"}


def test_what_was_kept_and_cannot_be_read_is_compiled(tmp_path: Path) -> None:
    launch = LAUNCH
    known = Known(tmp_path)
    assert known.find(launch) is None
    known.keep(launch, Built(status=Status.COMPILE_ERROR, reason="it is wrong"))
    assert known.find(launch) is None and not list(tmp_path.iterdir())
    built = Built(status=Status.OK, registers=32, compile_s=0.5, content=CONTENT)
    known.keep(launch, built)
    assert known.find(launch) == built
    [kept] = tmp_path.rglob("*.json")
    kept.write_text(built.model_copy(update={"content": "cd34" * 16}).model_dump_json())
    assert known.find(launch) is None
    kept.write_text("{")
    assert known.find(launch) is None
    assert known.find(launch.model_copy(update={"content": ""})) is None
    (tmp_path / "file").write_text("")
    Known(tmp_path / "file").keep(launch, built)  # no folder can be made there


@pytest.mark.parametrize("as_built", [CONTENT, "cd34" * 16, ""])
def test_what_was_built_of_another_content_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_built: str
) -> None:
    """A worker that takes a lost one's place records from the file as it is by then."""

    def ask(self: compile_all.Compiler, request: Any, expected: type[Any]) -> Any:
        if isinstance(request, Build):
            return Built(status=Status.OK, registers=32, content=as_built)
        return RecordedLaunches(triton="3", torch="2", launches=[LAUNCH], troubles=[])

    monkeypatch.setattr(compile_all.Compiler, "_ask", ask)
    task = compile_all.Task(ARCHITECTURES["sm_90"], "3.1.0", None, ahead=False)
    rows: list[CompiledLaunch] = []
    known = Known(tmp_path)
    compile_all.Compiler(task, Foreign(), 1.0, rows.append, known).run([])
    assert [row.registers for row in rows] == [32]
    assert (known.find(LAUNCH) is not None) == (as_built == CONTENT)
    assert len(list(tmp_path.rglob("*.json"))) == (as_built == CONTENT)


@pytest.mark.parametrize("odd", ["../../outside", "/outside", "AB12" * 16, "ab12", CONTENT + "\n"])
def test_what_is_no_hash_becomes_no_path(tmp_path: Path, odd: str) -> None:
    folder = tmp_path / "one" / "two"
    folder.mkdir(parents=True)
    launch = LAUNCH.model_copy(update={"content": odd})
    Known(folder).keep(launch, Built(status=Status.OK, content=odd))
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
    assert Known(folder).find(launch) is None
