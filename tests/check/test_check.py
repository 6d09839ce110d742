"""`nsabench check` on real kernels: what it says, what it keeps, and what it refuses."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import pytest
from click.testing import CliRunner, Result

from nsabench import check as checking
from nsabench import ops
from nsabench.check import baselines
from nsabench.cli import check as check_command
from nsabench.cli import group
from nsabench.errors import UsageError
from nsabench.machine import pressure
from nsabench.machine.environment import identity
from nsabench.model.description import Described
from nsabench.model.measurement import Conditions
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Purpose, Role, Runs
from nsabench.output.check import of_step
from nsabench.running import run
from nsabench.running.supervisor.executor import WorkerExecutor
from nsabench.verdicts.attempts import CaseState
from tests.checking import a_case

TWO = """
from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa

@implementation(op="selection_rows", name="right", devices=("cpu", "cuda"))
def right(q, k, v, *, sm_scale):
    return gqa(q, k, v, sm_scale=sm_scale)

@implementation(op="selection_rows", name="first_half", devices=("cpu", "cuda"))
def first_half(q, k, v, *, sm_scale):
    half = k.shape[1] // 2
    return gqa(q, k[:, :half].contiguous(), v[:, :half].contiguous(), sm_scale=sm_scale)
"""
RAISES = """
from nsabench import implementation

def deep(k):
    return k.no_such_method()

@implementation(op="selection_rows", name="raises", devices=("cpu", "cuda"))
def raises(q, k, v, *, sm_scale):
    print("about to fail")
    return deep(k)
"""
SMALL = ("--device", "cpu", "--shape", "N=4,H=2,D=32,L=16")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    # Others may use this machine.
    monkeypatch.setattr(pressure, "watch", lambda processes: lambda: False)


@pytest.fixture
def two(tmp_path: Path) -> Path:
    path = tmp_path / "two.py"
    path.write_text(TWO)
    return path


def check(*arguments: object) -> Result:
    return CliRunner().invoke(group, ["check", *map(str, arguments)], standalone_mode=False)


BUSY = "the machine may have been busy"


def has_speedup(answer: dict[str, Any]) -> bool:
    """On a machine that others keep busy it may have none."""
    return BUSY in answer["caution"] if answer["speedup"] is None else answer["speedup"] > 0


def test_right_and_wrong_are_said_first_and_baselines_come_from_a_cache(two: Path) -> None:
    first = check(two, *SMALL)
    assert first.return_value == 1, first.output
    wrong, why, right, times = first.output.splitlines()
    assert wrong == "first_half (selection_rows): WRONG 1 of 1"
    assert "selection_rows N4 H2 D32 L16 fp16: attends to the first 8 of 16 keys" in why
    assert right == "right (selection_rows): RIGHT 1 of 1"
    assert ": right, device " in times and "cached" not in times
    assert " x as fast as sdpa_" in times or BUSY in times, times
    assert ", cached)" in check(two, *SMALL).output.splitlines()[-1]
    assert "cached" not in check(two, *SMALL, "--fresh").output


def test_for_programs(two: Path) -> None:
    done = check(two, *SMALL, "--json")
    answers: list[dict[str, Any]] = json.loads(done.output)
    by_name = {a["implementation"]: a for a in answers}
    assert [by_name[n]["right"] for n in ("right", "first_half")] == [True, False]
    assert has_speedup(by_name["right"]) and by_name["right"]["baseline_device_ms"] > 0
    assert by_name["first_half"]["device_ms"] is None
    assert by_name["first_half"]["diagnosis"].startswith("attends to the first 8 of 16 keys")
    assert {(a["version"], a["error"]) for a in answers} == {(1, "")}


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("def broken(:\n", "two.py cannot be imported: SyntaxError"),
        ("import no_such_module\n", "two.py cannot be imported: ModuleNotFoundError"),
        (None, "cannot be read"),
    ],
)
def test_what_cannot_be_imported_is_told_to_programs(
    two: Path, content: str | None, sentence: str
) -> None:
    """What fails most often in a loop of a program that writes kernels."""
    if content is None:
        two.unlink()
    else:
        two.write_text(content)
    done = check(two, *SMALL, "--json")
    assert done.return_value == 2
    [told] = json.loads(done.stdout)
    assert told["version"] == 1 and told["right"] is False and told["exit_code"] == 2
    assert sentence in told["error"] and told["remedy"], told


NOT_TIMED = 'devices=("cuda", "interpreter")'
OFF = """
from nsabench import implementation
from nsabench.implementations.baselines.selection_rows import gqa

@implementation(op="selection_rows", name="off", devices=("cuda", "interpreter"))
def off(q, k, v, *, sm_scale):
    return gqa(q, k, v, sm_scale=sm_scale) * 1.0015
"""


def test_baselines_of_what_is_not_timed_are_hardly_timed(two: Path) -> None:
    """A Triton kernel on a machine without a GPU: whoever edits it waits for its parity alone."""
    two.write_text(TWO.replace('devices=("cpu", "cuda")', NOT_TIMED))
    done = check(two, *SMALL, "--json")
    by_name = {a["implementation"]: a for a in json.loads(done.output)}
    assert [by_name[n]["right"] for n in ("right", "first_half")] == [True, False]
    assert {(a["device_ms"], a["baseline"], a["speedup"]) for a in by_name.values()} == {
        (None, None, None)
    }
    assert check(two, *SMALL).output.splitlines()[-1].endswith(": right, not timed")
    kept = [json.loads(path.read_bytes()) for path in baselines.folder().glob("*.json")]
    timed = [one["samples"]["time_ms"] for one in kept if one["status"] == "ok"]
    assert timed and all(len(samples) == 1 for samples in timed)


def test_what_is_not_timed_is_held_to_the_baselines_all_the_same(two: Path) -> None:
    """They are nearer than half of what it is off by; without them it would be right."""
    two.write_text(OFF)
    [told] = json.loads(check(two, *SMALL, "--json").output)
    assert told["status"] == "wrong" and "is over 0.000977: the best valid" in told["reason"], told


def test_it_is_checked_again_whenever_it_is_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that is broken for a while, or gone while an editor puts another in its place."""
    path = tmp_path / "mine.py"
    path.write_text("first")
    edits = iter(
        [
            lambda: None,
            lambda: path.write_text("second, broken"),
            path.unlink,
            lambda: path.write_text("third"),
        ]
    )
    looked = []

    def between_two_looks(seconds: float) -> None:
        try:
            next(edits)()
        except StopIteration:
            raise KeyboardInterrupt from None

    def looked_at(question: Any, as_json: bool) -> int:
        looked.append(question.file.read_text())
        if "broken" in looked[-1]:
            raise UsageError("it is broken", "mend it.")
        return 0

    monkeypatch.setattr(check_command, "time", SimpleNamespace(sleep=between_two_looks))
    monkeypatch.setattr(check_command, "_check", looked_at)
    done = check(path, "--device", "cpu", "--watch")
    assert looked == ["first", "second, broken", "third"]
    assert "nsabench: it is broken\nmend it." in done.output


def test_a_person_learns_at_once_whether_it_is_right(two: Path) -> None:
    """Before anything is timed: the steps of both come before the answer."""
    told = []
    question = checking.Question(file=two, device="cpu", shapes=SMALL[-1:])
    checking.answer(question, on_found=lambda step: told.append(of_step(step)))
    assert told == ["right: RIGHT in its first calls", "first_half: WRONG in its first calls"]


def test_what_fails_shows_what_it_printed(tmp_path: Path) -> None:
    path = tmp_path / "raises.py"
    path.write_text(RAISES)
    done = check(path, "--device", "cpu")
    assert done.return_value == 1
    assert "raises (selection_rows): CRASHED 2 of 2" in done.output
    assert "Traceback (most recent call last):" in done.output
    assert "in raises\n" in done.output and "in deep\n" in done.output, "all frames of the user's"
    assert "nsabench/running" not in done.output, "and none of ours"
    assert "crashed: AttributeError" in done.output and "raises.py:5" in done.output
    assert "about to fail" in done.output


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shape", "N=4,H=2"], "--shape N=4,H=2 does not fit selection_rows"),
        (["--shape", "N=four"], "--shape N=four does not fit selection_rows: N: Input should be"),
        (["--shape", "N"], "--shape 'N' holds no sizes"),
        (["--op", "sliding_window"], "implements nothing of the op sliding_window"),
        (["--direction", "backward"], "the op selection_rows has no backward"),
    ],
)
def test_what_cannot_be_asked(two: Path, arguments: list[str], sentence: str) -> None:
    done = check(two, "--device", "cpu", *arguments)
    assert isinstance(done.exception, UsageError) and sentence in str(done.exception)


def test_every_op_brings_shapes_that_it_takes() -> None:
    for name in ops.names():
        op = ops.get(name)
        for device in ("cpu", "cuda"):
            assert len(op.check_shapes[device]) == 2, name
            for text in op.check_shapes[device]:
                op.shape_model.model_validate(dict(size.split("=") for size in text.split(",")))


SPOILS = """
import torch
from nsabench.registry.declaration import collected

for item in collected:
    if (item.op, item.role) == ("selection_rows", "baseline"):
        object.__setattr__(item, "call", lambda q, k, v, *, sm_scale: torch.zeros_like(q))
"""
REMOVES = """
from nsabench.registry.declaration import collected

gone = ("selection_rows", "sdpa_gqa")
collected[:] = [item for item in collected if (item.op, item.name) != gone]
"""
ADDS = """
from nsabench.registry.declaration import collecting_from

with collecting_from("nsabench"):
    @implementation(op="selection_rows", name="easy", role="baseline", devices=("cpu", "cuda"))
    def easy(q, k, v, *, sm_scale):
        return gqa(q, k, v, sm_scale=sm_scale)
"""


def test_a_file_spoils_no_baseline(two: Path) -> None:
    """What is installed is measured, and kept, where the file is not imported."""
    two.write_text(TWO + SPOILS)
    [right, _] = json.loads(check(two, *SMALL, "--json").output)
    assert right["right"] and right["baseline"].startswith("sdpa_") and has_speedup(right)


@pytest.mark.parametrize(("how", "whom"), [(REMOVES, "sdpa_gqa"), (ADDS, "easy")])
def test_a_file_that_alters_what_is_installed_is_refused(two: Path, how: str, whom: str) -> None:
    two.write_text(TWO + how)
    done = check(two, *SMALL)
    assert isinstance(done.exception, UsageError)
    assert f"two.py alters what is installed: {whom} of selection_rows" in str(done.exception)
    with pytest.raises(UsageError, match=f"alters what is installed: {whom} of selection_rows"):
        run.installed(two)


BEATS = """
import os, threading, time
from pathlib import Path

def beat():
    with Path(os.environ["TMPDIR"], "beats").open("ab", buffering=0) as file:
        while True:
            file.write(b".")
            time.sleep(1e-3)

threading.Thread(target=beat, daemon=True).start()
"""


def test_nothing_of_the_file_runs_while_baselines_are_timed(
    two: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A thread that spins for ever slows who computes beside it, and a cache would keep that."""
    two.write_text(TWO + BEATS)
    measured, seen = checking.Check.measure, []

    def watched(self: checking.Check, by: WorkerExecutor, planned: Any, names: Any) -> Any:
        if by.kernels is not None:
            return measured(self, by, planned, names)
        [beats] = Path(tempfile.gettempdir()).glob("nsabench-*/tmp/beats")
        before = beats.stat().st_size
        entry = measured(self, by, planned, names)
        seen.append((before, beats.stat().st_size))
        return entry

    monkeypatch.setattr(checking.Check, "measure", watched)
    assert check(two, *SMALL).return_value == 1
    [(before, after)] = seen
    assert 0 < before == after


@pytest.mark.parametrize(("device", "installed"), [("cuda", "x"), ("cuda", ""), ("cpu", "x")])
def test_no_kernel_of_the_file_runs_on_while_baselines_are_timed(
    monkeypatch: pytest.MonkeyPatch, device: str, installed: str
) -> None:
    """Its process has ended, and its kernels with it."""
    done: list[str] = []
    own, apart = (mock.MagicMock(spec=WorkerExecutor) for _ in range(2))
    own.retire.side_effect = lambda: done.append("retire")

    def measured(self: checking.Check, by: Any, planned: Any, names: Any) -> CaseState:
        done.append("measure")
        return CaseState(Purpose.MAIN, "a", [], {})

    monkeypatch.setattr(checking.Check, "measure", measured)
    plan: Any = SimpleNamespace(device=device)
    nothing: Any = None
    tried = checking.Check(plan, own, apart, nothing)
    tried.measure_installed(nothing, list(filter(None, [installed])))
    assert done == (["retire", "measure"] if installed else ["measure"])


@pytest.mark.parametrize("how", ["busy", "throttled"])
def test_a_baseline_that_was_disturbed_is_not_kept(
    two: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """It would flatter every kernel after it."""
    if how == "busy":
        monkeypatch.setattr(pressure, "watch", lambda processes: lambda: True)
    else:
        throttled = Conditions(clock_event_reasons=["hw_slowdown"])
        measured = checking.Check.measure

        def hot(*arguments: Any) -> CaseState:
            return replace(measured(*arguments), conditions={1: throttled})

        monkeypatch.setattr(checking.Check, "measure", hot)
    check(two, *SMALL)
    assert not list(baselines.folder().glob("*"))


def test_each_device_of_a_kind_has_its_own_baselines(monkeypatch: pytest.MonkeyPatch) -> None:
    described = Described(software={}, device={"type": "cuda", "nvml_index": 0})
    keys = set()
    info = ImplementationInfo(
        op="selection_rows", name="x", role=Role.BASELINE, devices=(Runs.CUDA,), source="x"
    )
    shape = {"N": 4, "H": 2, "D": 32, "Dv": 32, "L": 16}
    case = a_case("selection_rows", shape, timeout_s=1, timing=checking.question.TIMING)
    for uuid in ("GPU-1", "GPU-2"):
        monkeypatch.setattr(identity, "_device_uuid", lambda described, uuid=uuid: uuid)
        known = baselines.KnownBaselines(described, {"x": "0"}, fresh=False)
        keys.add(known._find_file(case, info))
    assert len(keys) == 2
