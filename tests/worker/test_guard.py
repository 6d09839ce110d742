"""Map exceptions of foreign code to statuses."""

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from nsabench.failure import Failure  # noqa: E402
from nsabench.model.vocabulary import Status  # noqa: E402
from nsabench.registry import USER_MODULE  # noqa: E402
from nsabench.worker import guard  # noqa: E402
from nsabench.worker.guard import classify, guarded  # noqa: E402


def test_out_of_memory_also_where_torch_names_it_under_cuda_only(monkeypatch):
    monkeypatch.delattr(torch, "OutOfMemoryError")  # torch 2.5 added it
    assert classify(torch.cuda.OutOfMemoryError("x")).status is Status.OUT_OF_MEMORY
    assert classify(RuntimeError("x")).status is Status.CRASHED


def user_module(monkeypatch, source):
    module = ModuleType(USER_MODULE)
    module.__file__ = "/home/me/mine.py"
    monkeypatch.setitem(sys.modules, USER_MODULE, module)
    exec(compile(source, module.__file__, "exec"), module.__dict__)
    return module


def test_a_crash_is_located_in_the_users_file(monkeypatch):
    """Triton's interpreter catches what a kernel raises, and raises an error of its own."""
    module = user_module(monkeypatch, "def kernel():\n    return nope\n")

    def interpreted():
        try:
            module.kernel()
        except NameError as error:
            raise RuntimeError(repr(error)) from error

    with pytest.raises(RuntimeError) as caught:
        interpreted()
    failure = classify(caught.value)
    assert failure.reason.endswith(" (mine.py:2)")
    assert 'File "/home/me/mine.py", line 2, in kernel' in failure.trace
    assert "in interpreted" in failure.trace and "NameError" in failure.trace
    caught.value.__cause__ = caught.value
    assert "(test_guard.py:" in classify(caught.value).reason


def test_a_kernels_line_comes_before_that_of_its_launch(monkeypatch):
    """Both lines are in the user's file. Triton's own error passes through the launch."""
    source = (
        "def kernel():\n    return nope\n"
        "def launch():\n    try:\n        kernel()\n"
        "    except NameError as error:\n        raise RuntimeError('no line') from error\n"
    )
    module = user_module(monkeypatch, source)
    with pytest.raises(RuntimeError) as caught:
        module.launch()
    assert classify(caught.value).reason == "RuntimeError: no line (mine.py:2)"


def test_a_compiler_error_names_the_users_line(monkeypatch):
    source = (
        "class CompilationError(Exception): pass\ndef launch():\n    raise CompilationError('x')\n"
    )
    module = user_module(monkeypatch, source)
    with pytest.raises(module.CompilationError) as caught:
        module.launch()
    failure = classify(caught.value)
    assert failure.status is Status.COMPILE_ERROR
    assert failure.reason == "CompilationError: x (mine.py:3)"


def test_a_traceback_begins_where_our_frames_end():
    def three_deep(depth):
        if depth:
            three_deep(depth - 1)
        raise ValueError("deep inside")

    with pytest.raises(Failure) as caught:
        guarded(lambda: three_deep(2), "cpu")
    trace = caught.value.trace
    assert trace.count("in three_deep") == 3 and trace.endswith("ValueError: deep inside\n")
    assert str(guard.__file__) not in trace
    assert caught.value.alone().trace == trace


def test_a_traceback_that_is_hostile_or_endless_is_bounded():
    class Hostile(Exception):
        def __str__(self):
            raise RuntimeError

    assert "Hostile" in classify(Hostile()).trace
    assert len(classify(ValueError("x" * 100_000)).trace) < 20_000


class OutOfResources(Exception):
    """Has the name of an error of Triton."""


def test_an_error_that_a_compiler_caused_is_the_compilers():
    with pytest.raises(RuntimeError) as caught:
        try:
            raise OutOfResources("shared memory")
        except OutOfResources as error:
            raise RuntimeError("this GPU cannot run the kernel") from error
    assert classify(caught.value).status is Status.COMPILE_ERROR


def test_an_error_while_a_compilers_was_handled_is_a_crash():
    """A kernel may try a large tile, and then fail by a mistake of its own."""
    with pytest.raises(ValueError) as caught:
        try:
            raise OutOfResources("shared memory")
        except OutOfResources:
            raise ValueError("no smaller tile")  # noqa: B904 - that is what is tested
    assert classify(caught.value).status is Status.CRASHED
