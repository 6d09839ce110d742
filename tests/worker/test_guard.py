"""What exceptions of foreign code mean."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from nsabench.words import Status  # noqa: E402
from nsabench.worker.guard import classify  # noqa: E402


def test_out_of_memory_also_where_torch_names_it_under_cuda_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr(torch, "OutOfMemoryError")  # torch has it from 2.5 on
    assert classify(torch.cuda.OutOfMemoryError("x")).status is Status.OUT_OF_MEMORY
    assert classify(RuntimeError("x")).status is Status.CRASHED
