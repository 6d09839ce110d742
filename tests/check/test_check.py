"""`nsabench check` on real kernels: what it prints, and what it refuses."""

import json
import re
import time
from threading import Timer

import pytest
from click.testing import CliRunner

from nsabench import check as checking
from nsabench import ops
from nsabench.cli import group
from nsabench.cli._watch import repeat
from nsabench.errors import UsageError
from nsabench.output.check import describe_step
from nsabench.output.explain import explain
from nsabench.output.programs import CheckDocument
from nsabench.running import planner

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
ONE = TWO.split('\n@implementation(op="selection_rows", name="first_half"')[0]
PROBED = ONE.replace("    return", '    print(f"{k.shape[1]} keys")\n    return')
AS_IF_DENSE = (
    "    q, k, v = (x.as_strided(x.shape, x.new_empty(x.shape).stride()) for x in (q, k, v))\n"
)
SMALL = ("--device", "cpu", "--shape", "N=4,H=2,D=32,L=16")


@pytest.fixture
def two(tmp_path):
    path = tmp_path / "two.py"
    path.write_text(TWO)
    return path


def check(*arguments):
    return CliRunner().invoke(group, ["check", *map(str, arguments)], standalone_mode=False)


def read_answers(done):
    CheckDocument.model_validate_json(done.stdout)
    return json.loads(done.stdout)["answers"]


def test_a_slow_kernel_can_be_given_more_time(tmp_path):
    path = tmp_path / "slow.py"
    path.write_text(RAISES.replace('print("about to fail")', "__import__('time').sleep(3600)"))
    done = check(path, *SMALL, "--timeout", "4")
    assert done.return_value == 1 and "timeout: no answer within" in done.output
    assert "--timeout SECONDS" in done.output


def test_right_and_wrong_are_said_first(two):
    first = check(two, *SMALL)
    assert first.return_value == 1, first.output
    header, wrong, why, element, right, times = first.output.splitlines()
    assert re.fullmatch(r".*two\.py on the CPU, \d\d:\d\d:\d\d", header)
    assert re.fullmatch(r" +output\[\d+, \d+, \d+\] is \S+ and should be \S+", element)
    assert wrong == "first_half (selection_rows): WRONG 1 of 1"
    assert "selection_rows N4 H2 D32 L16 fp16: attends to the first 8 of 16 keys" in why
    assert right == "right (selection_rows): RIGHT 1 of 1"
    assert ": right, device " in times
    assert re.search(r"; [0-9.]+ \[[0-9.]+, [0-9.]+\] x as fast as \w+", times), times


def test_for_programs(two):
    done = check(two, *SMALL, "--json")
    answers = read_answers(done)
    by_name = {a["implementation"]: a for a in answers}
    assert [by_name[n]["right"] for n in ("right", "first_half")] == [True, False]
    right = by_name["right"]
    assert right["speedup_lo"] <= right["speedup"] <= right["speedup_hi"]
    assert right["baseline_ms"] > 0
    assert by_name["first_half"]["median_ms"] is None
    assert by_name["first_half"]["worst_element"].startswith("output[")
    assert by_name["first_half"]["diagnosis_id"] == "first-keys-only"
    assert by_name["right"]["diagnosis_id"] == ""
    assert all(explain(key) for key in right)


@pytest.mark.parametrize(
    ("content", "words", "named"),
    [
        ("def broken(:\n", ("two.py",), "SyntaxError"),
        (None, ("two.py",), "two.py"),
        (TWO, ("two.yaml",), "two.yaml is not a Python file"),
        (TWO, ("two.py", "--ops", "."), "is not a Python file"),
    ],
)
def test_what_cannot_be_imported_is_told_to_programs(two, monkeypatch, content, words, named):
    monkeypatch.chdir(two.parent)
    if content is None:
        two.unlink()
    else:
        two.write_text(content)
    told = CheckDocument.model_validate_json(check(*words, *SMALL, "--json").stdout)
    assert told.exit_code == 2 and told.answers == []
    assert named in told.error and told.remedy, told


NOT_TIMED = 'devices=("cuda", "interpreter")'
OFF = ONE.replace('devices=("cpu", "cuda")', NOT_TIMED).replace("=sm_scale)", "=sm_scale) * 1.0015")


def test_what_is_not_timed_has_no_times_and_no_ratio(two):
    two.write_text(TWO.replace('devices=("cpu", "cuda")', NOT_TIMED))
    done = check(two, *SMALL, "--json")
    by_name = {a["implementation"]: a for a in read_answers(done)}
    assert [by_name[n]["right"] for n in ("right", "first_half")] == [True, False]
    assert {(a["median_ms"], a["best_baseline"], a["speedup"]) for a in by_name.values()} == {
        (None, "", None)
    }
    # An error that rounding does not explain is wrong.
    two.write_text(OFF)
    [off] = read_answers(check(two, *SMALL, "--json"))
    assert off["status"] == "wrong", off


def test_it_is_checked_again_whenever_it_is_saved(tmp_path):
    """First the file is gone while an editor replaces it, and later it is saved during a check."""
    path = tmp_path / "mine.py"
    path.write_text("first")
    rounds, ended = [], []

    def check_once():
        rounds.append(path.read_text())
        if rounds[-1] == "first":
            path.unlink()
            Timer(0.5, path.write_text, ["second, saved too early"]).start()
        elif rounds[-1] == "third":
            raise KeyboardInterrupt
        else:
            path.write_text("third")
            time.sleep(60)  # the save ends the sleep
            ended.append("slept through")

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        repeat(path, check_once, on_saved=lambda: ended.append("saved"))
    assert rounds == ["first", "second, saved too early", "third"]
    assert ended[-1] == "saved" and "slept through" not in ended
    assert time.monotonic() - started < 30


def test_a_person_learns_at_once_whether_it_is_right(two):
    """The first calls of both kernels are judged before either is timed."""
    told = []
    shapes = (*SMALL[-1:], "N=3,H=2,D=32,L=16")
    question = checking.CheckRequest(file=two, device="cpu", shapes=shapes)
    checking.check_file(question, on_found=lambda step: told.append(describe_step(step)))
    assert told == ["right: RIGHT in its first calls", "first_half: WRONG in its first calls"]


def test_a_series_of_lengths_is_probed_until_a_kernel_is_right(tmp_path):
    path = tmp_path / "probed.py"
    shapes = tuple(f"N=4,H=2,D=32,L={length}" for length in (16, 32))
    question = checking.CheckRequest(file=path, device="cpu", shapes=shapes)
    path.write_text(PROBED)
    assert ["65 keys" in found.log for found in checking.check_file(question)] == [True, False]


def test_what_fails_shows_what_it_printed(tmp_path):
    path = tmp_path / "raises.py"
    path.write_text(RAISES)
    done = check(path, "--device", "cpu")
    assert done.return_value == 1
    assert "raises (selection_rows): CRASHED 2 of 2" in done.output
    assert "Traceback (most recent call last):" in done.output
    assert "in raises\n" in done.output and "in deep\n" in done.output, "all the user's frames"
    assert "nsabench/running" not in done.output, "no frame of nsabench"
    assert "crashed: AttributeError" in done.output and "raises.py:5" in done.output
    assert "about to fail" in done.output


def test_a_kernel_that_ignores_strides_is_told_so(tmp_path):
    path = tmp_path / "dense.py"
    path.write_text(ONE.replace("    return", f"{AS_IF_DENSE}    return"))
    [answer] = read_answers(check(path, *SMALL, "--json"))
    assert answer["diagnosis_id"] == "strides-ignored"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shape", "foo"], "--shape 'foo'"),
        (["--op", "nope"], "nope"),
        (["--op", "sliding_window", "--shape", "T=32"], "B: Field required"),
    ],
)
def test_a_bad_shape_or_op_is_refused_before_the_file_is_imported(tmp_path, arguments, sentence):
    (tmp_path / "broken.py").write_text("def broken(:\n")
    done = check(tmp_path / "broken.py", "--device", "cpu", *arguments)
    assert isinstance(done.exception, UsageError) and done.output == ""
    assert sentence in str(done.exception)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--shape", "N=four"], "--shape N=four does not fit selection_rows: N: Input should be"),
        (["--op", "sliding_window"], "implements nothing of the op sliding_window"),
        (["--direction", "backward"], "the op selection_rows has no backward"),
    ],
)
def test_what_cannot_be_asked(two, arguments, sentence):
    done = check(two, "--device", "cpu", *arguments)
    assert isinstance(done.exception, UsageError) and sentence in str(done.exception)


def test_every_op_brings_shapes_that_it_takes():
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


@pytest.mark.parametrize(("how", "whom"), [(REMOVES, "sdpa_gqa"), (ADDS, "easy")])
def test_a_file_that_alters_what_is_installed_is_refused(two, how, whom):
    two.write_text(TWO + how)
    done = check(two, *SMALL)
    assert isinstance(done.exception, UsageError)
    assert "two.py" in str(done.exception) and whom in str(done.exception)
    with pytest.raises(UsageError, match=f"alters what is installed: {whom} of selection_rows"):
        planner.installed(two)


def test_what_is_its_own_baseline_is_as_fast(two):
    """The kernel and the baseline are timed in turn in one process, so what disturbs one disturbs
    the other."""
    two.write_text(ONE)
    shape = ("--device", "cpu", "--shape", "N=64,H=4,D=64,L=256")
    [told] = read_answers(check(two, *shape, "--json"))
    assert told["best_baseline"] and told["speedup_lo"] < 1.1, told


def test_a_baseline_that_a_file_spoils_is_wrong(two):
    """A file shares its process with the baselines. If it spoils them, no ratio is left."""
    two.write_text(TWO + SPOILS)
    [right, _] = read_answers(check(two, *SMALL, "--json"))
    assert right["right"] and right["best_baseline"] == "" and right["speedup"] is None
