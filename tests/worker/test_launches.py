"""Count the launches of a call between two marks. Without a device the count is empty."""

from __future__ import annotations

import pytest
import torch

from nsabench.worker.timing import cuda
from nsabench.worker.timing.cuda import Counted, Ran, between_marks

MARK = "void (anonymous namespace)::spin_kernel(long)"


def test_what_makes_a_call_ready_does_not_count() -> None:
    names = ["fill", MARK, "a", "b", MARK, "forward", "copy", MARK, MARK, MARK, "c", MARK, "d"]
    ran = [Ran(name, 1.5 if name in "abc" else 100.0) for name in names]
    assert between_marks(ran) == [Counted(2, 3.0), Counted(0, 0.0), Counted(1, 1.5)]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a device here")
def test_without_a_device_nothing_is_counted() -> None:
    assert cuda.count_launches({"mine": lambda: lambda: None}) == {}
