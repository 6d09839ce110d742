"""Which of the kernels' own implementations nsabench plans."""

from nsabench.model.vocabulary import Direction
from nsabench.running.planner import make_plan

FORWARD_ONLY = {"ranges_cuda", "blocks_query_major"}


def test_a_kernel_without_a_backward_is_planned_for_none():
    cases = make_plan(["selection_edge"], "cuda", None).cases
    planned = {
        direction: {n for p in cases if p.case.direction is direction for n in p.implementations}
        for direction in Direction
    }
    assert planned[Direction.FORWARD] >= FORWARD_ONLY
    assert not planned[Direction.BACKWARD] & FORWARD_ONLY
