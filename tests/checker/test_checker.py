"""The checker answers every delivery, since foreign code in a worker may forge one."""

import math
from pathlib import Path

import pytest
import torch

from nsabench.delivery import Delivery
from nsabench.model.vocabulary import Direction, Status
from nsabench.running.clients import CheckerClient
from nsabench.running.process import WorkerRefused
from tests.checking import Desk, a_case

RMSNORM = Path(__file__).parents[1] / "rmsnorm.py"
BLOCKS = {"B": 1, "T": 12, "HQ": 2, "H": 1, "D": 16, "S": 2, "block_size": 8}


@pytest.mark.parametrize(
    ("forged", "said"),
    [
        ({"factor": 0.0}, "never multiplied by 0"),
        ({"factor": 5e-324}, "never multiplied by 4.94066e-324"),
        ({"factor": math.nan}, "never multiplied by nan"),
        ({"computes": "causal_attention"}, "no oracle of 'causal_attention'"),
        ({"set": 99}, "no set 99 of inputs"),
        ({"set": -1}, "no set -1 of inputs"),
        ({"previous": 7}, "no set 7 of inputs"),
    ],
)
def test_a_forged_delivery_is_refused_in_the_name_of_its_deliverer(forged, said):
    desk = Desk(a_case("selection_blocks", BLOCKS, direction=Direction.BACKWARD))
    honest = Delivery(implementation="mine", computes="", set=0)
    assert not desk.checker.check(honest.model_copy(update=forged)).right
    assert not desk.checker.check(honest).right, "nothing was put into the mailbox"
    judged = desk.conclude()["mine"]
    assert judged.status is Status.CRASHED
    assert judged.reason.startswith("its process delivered a result that cannot be checked")
    assert said in judged.reason


def test_after_a_forged_delivery_others_are_checked_as_before():
    desk = Desk(a_case("selection_rows", {"N": 2, "H": 2, "D": 16, "L": 8}))
    right = desk.checker._oracles["", ""].expected[1]["output"].half()
    assert not desk.checker.check(Delivery(implementation="a", computes="", set=99)).right
    desk._mailbox.put(desk.prepared.forms[""], [right])
    assert desk.checker.check(Delivery(implementation="b", computes="", set=1)).right
    judged = desk.conclude()
    assert (judged["b"].status, judged["b"].reason) == (Status.OK, "")
    assert judged["b"].mae is not None and judged["a"].mae is None


def test_an_op_that_changed_after_the_plan_is_not_executed():
    case = a_case("selection_rows", {"N": 2, "H": 2, "D": 16, "L": 8})
    checker = CheckerClient("cpu", RMSNORM, "0" * 64)
    try:
        with pytest.raises(WorkerRefused, match=r"rmsnorm\.py"):
            checker.prepare(case, [""], [1, 2], probes=False)
    finally:
        checker.close()


@pytest.mark.parametrize("diagnosed", [["mine"], []])
def test_only_what_is_asked_for_is_diagnosed(diagnosed):
    desk = Desk(a_case("selection_rows", {"N": 2, "H": 2, "D": 16, "L": 8}))
    zeros = torch.zeros(2, 2, 16, dtype=torch.float16)
    desk._mailbox.put(desk.prepared.forms[""], [zeros])
    assert not desk.checker.check(Delivery(implementation="mine", computes="", set=1)).right
    judged = desk.checker.conclude(diagnosed).judged["mine"]
    assert judged.status is Status.WRONG and judged.reason
    assert judged.diagnosis_id == ("all-zero" if diagnosed else "")
