"""Mistakes in NSA as a whole and in dense attention are named, even where queries are sampled."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsabench import ops
from nsabench.checker.diagnosis.gradients import diagnose_gradient
from nsabench.checker.diagnosis.outputs import diagnose
from nsabench.implementations.baselines.nsa_attention import attend_without_window
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs

SIZES = {"HQ": 4, "H": 2, "D": 32}
NSA = {**SIZES, "block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 12}


def draw(op: str, distribution: str = "dense", **sizes: int) -> Inputs:
    found = ops.get(op)
    shape = found.shape_model.model_validate(sizes)
    return found.draw(shape, DType.FLOAT16, distribution, 1, "cpu")


def changed(inputs: Inputs, tensors: dict[str, Tensor], **options: int) -> Inputs:
    return Inputs({**inputs.tensors, **tensors}, {**inputs.options, **options})


def gated(change: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    return lambda inputs: changed(inputs, {"gates": change(inputs.tensors["gates"])})


MISTAKES = {
    "branch-lost": gated(lambda g: g * g.new_tensor([1.0, 0.0, 1.0])),
    "gates-ignored": gated(torch.ones_like),
    "window-size": lambda i: changed(i, {}, window=11),
}
WITHOUT_WINDOW = {
    "branch-lost": gated(lambda g: g * g.new_tensor([1.0, 0.0])),
    "gates-exchanged": gated(lambda g: g.flip(-1)),
    "block-count": lambda i: changed(i, {}, n_selected=3),
}


def find(op: str, inputs: Inputs, output: Tensor) -> str:
    """Return the id of the diagnosis. It must not depend on how busy the machine is."""
    return diagnose(ops.get(op), inputs, output, time_limit_s=60.0).id


@pytest.mark.parametrize("mistake", WITHOUT_WINDOW)
def test_a_mistake_in_nsa_without_a_window_is_named(mistake: str) -> None:
    inputs = draw("nsa_without_window", B=1, T=120, **SIZES, block_size=16, n_selected=4)
    wrong = WITHOUT_WINDOW[mistake](inputs)
    output = attend_without_window(*wrong.tensors.values(), **wrong.options)
    assert find("nsa_without_window", inputs, output) == mistake


@pytest.mark.parametrize(
    ("name", "mistake"), [("dq", "branch-lost"), ("dv", "window-size"), ("dk", "gates-ignored")]
)
def test_a_mistake_in_a_gradient_of_nsa_is_named(name: str, mistake: str) -> None:
    op, inputs = ops.get("nsa_attention"), draw("nsa_attention", B=1, T=120, **NSA)
    grad_out = op.draw_grad(inputs, 3)
    by = name.removeprefix("d")
    right = op.gradients(inputs, grad_out)[by]
    wrong = op.gradients(MISTAKES[mistake](inputs), grad_out)[by]
    wrong = torch.where(wrong.isfinite(), wrong, 7.0).half()  # rows that are not compared
    found = diagnose_gradient(op, inputs, grad_out, name, wrong, right, time_limit_s=60.0)
    assert found.id == mistake and found.mistake.startswith(name)


def dense(inputs: Inputs, mask: Tensor) -> Tensor:
    """mask: bool [T,T], what each query sees."""
    q, k, v = (inputs.tensors[name].double().transpose(1, 2) for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * inputs.options["sm_scale"]).masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, -1) @ v).nan_to_num().transpose(1, 2).half()


def tokens(at: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(at)
    return index.unsqueeze(1), index.unsqueeze(0)


@pytest.mark.parametrize(("seed", "first"), [(11, 2), (3, 0)])
def test_a_mistake_is_named_where_queries_are_sampled(seed: int, first: int) -> None:
    """Without its own key query 0 has none, and its zero is the largest error if it is sampled."""
    inputs = draw("causal_attention", B=1, T=4200, HQ=1, H=1, D=16)
    inputs.sample_seed = seed
    sampled = ops.compared(ops.get("causal_attention").oracle(inputs))[0, :, 0].nonzero()
    assert len(sampled) < 300 and sampled[0] == first
    query, key = tokens(4200)
    assert find("causal_attention", inputs, dense(inputs, key < query)) == "last-key-lost"
