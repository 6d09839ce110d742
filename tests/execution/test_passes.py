"""The passes of a run, and what one takes over from the one before."""

from __future__ import annotations

from itertools import pairwise

from nsabench.execution.passes import PASSES


def test_who_goes_on_with_a_worker_wants_one_of_the_same_kind() -> None:
    going = [(before, after) for before, after in pairwise(PASSES) if after.goes_on]
    assert going
    assert all(before.start == after.start for before, after in going)
