"""The implementations that ship for selection_blocks, through the arm, on the CPU."""

from __future__ import annotations

from random import Random

import pytest
import torch

from nsabench import ops, registry
from nsabench.checker.diagnosis import diagnose
from nsabench.model.case import Case
from nsabench.model.plan import ImplementationInfo
from nsabench.model.vocabulary import Direction, Runs
from nsabench.planning import matrix, resolve
from tests.checking import a_case, arm_of, sets_of

pytestmark = pytest.mark.usefixtures("one_thread")
OP = "selection_blocks"
SHAPE = {"B": 2, "T": 150, "HQ": 4, "H": 2, "D": 32, "Dv": 32, "S": 5, "block_size": 8}
CHANGES = {"packed": {"B": 1}, "dense": {"S": 19}}
shipped = {i.name: i for i in registry.load() if i.op == OP and Runs.CPU in i.devices}


def make_case(distribution: str, direction: str, dtype: str = "bfloat16") -> Case:
    fields = {"dtype": dtype, "direction": direction, "distribution": distribution}
    return a_case(OP, SHAPE | CHANGES.get(distribution, {}), **fields)


def check(name: str, case: Case) -> None:
    arm_of(shipped[name], case, sets_of(case), Random(0)).check()


@pytest.mark.parametrize("direction", [Direction.FORWARD, Direction.BACKWARD])
@pytest.mark.parametrize("distribution", [d for d in ops.get(OP).distributions if d != "recorded"])
def test_baselines_are_right(distribution, direction) -> None:
    if direction.differentiates and distribution in ("large_logits", "one_hot"):
        pytest.skip("half-precision gradients of a saturated softmax are not well-conditioned")
    names = ["masked_sdpa", "gathered_sdpa"]
    if distribution == "dense":
        names += ["sdpa_causal", "sdpa_causal_flash"]
    for name in names:
        for dtype in ("float16", "bfloat16"):
            check(name, make_case(distribution, direction, dtype))


@pytest.mark.parametrize("distribution", ["random", "packed", "dense"])
def test_mistakes_have_names(distribution) -> None:
    case = make_case(distribution, "forward")
    inputs = sets_of(case).sets[0]
    given = inputs.tensors

    def said(name: str, **changes: torch.Tensor) -> str:
        out = shipped[name].call(*(given | changes).values(), **inputs.options)
        return diagnose(ops.get(OP), inputs, out)

    some = given["block_indices"].clone()
    some[..., -1] = -1
    assert f"the last of the {some.shape[-1]} blocks" in said("masked_sdpa", block_indices=some)
    some = given["block_indices"].masked_fill(given["block_indices"] == 0, -1)
    assert "leaves out block 0" in said("masked_sdpa", block_indices=some)
    if distribution == "packed":
        one = {"cu_seqlens": torch.tensor([0, 150], dtype=torch.int32)}
        assert "packed sequences for one" in said("masked_sdpa", **one)


def test_attention_to_all_keys_is_planned_only_where_it_is_the_same(tmp_path) -> None:
    infos = [ImplementationInfo.model_validate(i, from_attributes=True) for i in shipped.values()]
    path = tmp_path / "m.yaml"
    path.write_text(
        f"op: {OP}\ninclude:\n"
        "  - {B: 1, T: 64, HQ: 2, H: 1, D: 16, S: 2, distribution: [random, dense]}\n"
    )
    planned = resolve.resolve(matrix.load(path), infos, device="cpu").cases
    by_distribution = {p.case.distribution: p.implementations for p in planned}
    assert "sdpa_causal" in by_distribution["dense"]
    assert not any(n.startswith("sdpa_causal") for n in by_distribution["random"])
    assert "masked_sdpa" in by_distribution["random"]
