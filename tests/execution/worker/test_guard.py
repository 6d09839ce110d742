"""What exceptions of foreign code mean."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

torch = pytest.importorskip("torch")

from nsabench.execution.worker.guard import classify  # noqa: E402
from nsabench.model.vocabulary import Status  # noqa: E402
from nsabench.registry import USER_MODULE  # noqa: E402


def test_out_of_memory_also_where_torch_names_it_under_cuda_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch, "OutOfMemoryError")  # torch has it from 2.5 on
    assert classify(torch.cuda.OutOfMemoryError("x")).status is Status.OUT_OF_MEMORY
    assert classify(RuntimeError("x")).status is Status.CRASHED


def test_a_crash_is_located_in_the_users_file(monkeypatch: pytest.MonkeyPatch) -> None:
    """Triton's interpreter catches what a kernel raises, and raises an error of its own."""
    module = ModuleType(USER_MODULE)
    module.__file__ = "/home/me/mine.py"
    monkeypatch.setitem(sys.modules, USER_MODULE, module)
    exec(compile("def kernel():\n    return nope\n", module.__file__, "exec"), module.__dict__)

    def interpreted() -> None:
        try:
            module.kernel()
        except NameError as error:
            raise RuntimeError(repr(error)) from error

    with pytest.raises(RuntimeError) as caught:
        interpreted()
    assert classify(caught.value).reason.endswith(" (mine.py:2)")
    caught.value.__cause__ = caught.value
    assert "(test_guard.py:" in classify(caught.value).reason
