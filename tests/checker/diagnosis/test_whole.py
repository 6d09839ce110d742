"""Mistakes in the whole attention and in dense attention are named, though not every row of their
oracles is held to."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from nsabench import ops
from nsabench.checker.diagnosis import diagnose, diagnose_gradient, search
from nsabench.implementations.baselines.nsa_attention import attend, attend_without_window
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs, _sampled

SIZES = {"HQ": 4, "H": 2, "D": 32}
NSA = {**SIZES, "block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 12}


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is found must not depend on how busy the machine is."""
    monkeypatch.setattr(search, "TIME_LIMIT_S", 60.0)


def draw(op: str, distribution: str = "dense", **sizes: int) -> Inputs:
    found = ops.get(op)
    shape = found.shape_model.model_validate(sizes)
    return found.draw(shape, DType.FLOAT16, distribution, 1, "cpu")


def changed(inputs: Inputs, tensors: dict[str, Tensor], **options: int) -> Inputs:
    return Inputs({**inputs.tensors, **tensors}, {**inputs.options, **options})


def nsa(inputs: Inputs) -> Tensor:
    """By torch, with something in every row that the oracle leaves out."""
    t = inputs.tensors
    cu = t.get("cu_seqlens")
    return attend(t["q"], t["k"], t["v"], t["gates"], cu, **inputs.options)


def gated(change: Callable[[Tensor], Tensor]) -> Callable[[Inputs], Inputs]:
    return lambda inputs: changed(inputs, {"gates": change(inputs.tensors["gates"])})


MISTAKES = {
    "leaves out the selected branch": gated(lambda g: g * g.new_tensor([1.0, 0.0, 1.0])),
    "leaves out the window branch": gated(lambda g: g * g.new_tensor([1.0, 1.0, 0.0])),
    "adds the branches without their gates": gated(torch.ones_like),
    "the gates of the compressed and the window branch exchanged": gated(lambda g: g.flip(-1)),
    "takes the gates of head 0": gated(lambda g: g[:, :, :1].expand_as(g).contiguous()),
    "squashes the gates, which are": gated(torch.sigmoid),
    "uses a window of 11 keys instead of 12": lambda i: changed(i, {}, window=11),
    "selects 3 blocks instead of 4": lambda i: changed(i, {}, n_selected=3),
    "compresses 4 tokens to a key instead of 8": lambda i: changed(i, {}, block=4),
}


@pytest.mark.parametrize(("says", "mistake"), MISTAKES.items())
def test_a_mistake_in_the_whole_is_named(says: str, mistake: Callable[[Inputs], Inputs]) -> None:
    inputs = draw("nsa_attention", B=1, T=120, **NSA)
    op = ops.get("nsa_attention")
    text = diagnose(op, inputs, nsa(mistake(inputs)))
    assert says in text and "against that hypothesis" in text


@pytest.mark.parametrize(
    ("says", "mistake"),
    {
        "leaves out the selected branch": gated(lambda g: g * g.new_tensor([1.0, 0.0])),
        "the gates of the compressed and the selected branch exch": gated(lambda g: g.flip(-1)),
        "selects 3 blocks instead of 4": lambda i: changed(i, {}, n_selected=3),
    }.items(),
)
def test_a_mistake_in_the_whole_without_a_window_is_named(
    says: str, mistake: Callable[[Inputs], Inputs]
) -> None:
    op = ops.get("nsa_without_window")
    inputs = draw(op.name, B=1, T=120, **SIZES, block_size=16, n_selected=4)
    of = mistake(inputs)
    output = attend_without_window(*of.tensors.values(), **of.options)
    text = diagnose(op, inputs, output)
    assert says in text and "against that hypothesis" in text


def test_packed_sequences_taken_for_one_are_named() -> None:
    inputs = draw("nsa_attention", "packed", B=3, T=60, **NSA)
    t = {name: tensor for name, tensor in inputs.tensors.items() if name != "cu_seqlens"}
    one = Inputs(t, {**inputs.options, "max_seqlen": t["q"].shape[1]})
    text = diagnose(ops.get("nsa_attention"), inputs, nsa(one))
    assert text.startswith("takes the packed sequences for one")


@pytest.mark.parametrize(
    ("name", "says", "mistake"),
    [
        ("dq", "leaves out the selected branch", MISTAKES["leaves out the selected branch"]),
        ("dv", "uses a window of 11 keys instead of 12", lambda i: changed(i, {}, window=11)),
        ("dk", "without their gates", MISTAKES["adds the branches without their gates"]),
    ],
)
def test_a_mistake_in_a_gradient_of_the_whole_is_named(
    name: str, says: str, mistake: Callable[[Inputs], Inputs]
) -> None:
    op, inputs = ops.get("nsa_attention"), draw("nsa_attention", B=1, T=120, **NSA)
    grad_out = op.draw_grad(inputs, 3)
    of = name.removeprefix("d")
    right = op.gradients(inputs, grad_out)[of]
    got = op.gradients(mistake(inputs), grad_out)[of]
    got = torch.where(got.isfinite(), got, 7.0).half()  # what no one is held to
    assert says in diagnose_gradient(op, inputs, grad_out, name, got, right)


def dense(inputs: Inputs, mask: Tensor) -> Tensor:
    """mask: bool [T,T], what each query sees."""
    q, k, v = (inputs.tensors[name].double().transpose(1, 2) for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * inputs.options["sm_scale"]).masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, -1) @ v).nan_to_num().transpose(1, 2).half()


def tokens(at: int) -> tuple[Tensor, Tensor]:
    index = torch.arange(at)
    return index.unsqueeze(1), index.unsqueeze(0)


DENSE = {
    "without a causal mask": lambda q, k: (q >= 0) & (k >= 0),
    "leaves out the query's own key": lambda q, k: k < q,
    "attends to one key after the query": lambda q, k: k <= q + 1,
    "leaves out the first key": lambda q, k: (k <= q) & (k > 0),
    "up to the end of its tile of 32": lambda q, k: k < (q // 32 + 1) * 32,
}


@pytest.mark.parametrize(("says", "sees"), DENSE.items())
def test_a_mistake_in_dense_attention_is_named(
    says: str, sees: Callable[[Tensor, Tensor], Tensor]
) -> None:
    inputs = draw("causal_attention", B=2, T=100, **SIZES)
    text = diagnose(ops.get("causal_attention"), inputs, dense(inputs, sees(*tokens(100))))
    assert says in text and "against that hypothesis" in text


@pytest.mark.parametrize(("seed", "first"), [(11, 2), (3, 0)])
def test_where_only_some_queries_are_looked_at_a_mistake_is_named(seed: int, first: int) -> None:
    """Above 4096 tokens an oracle looks at 256 of them. Without its own key the first query has
    none, and its zero is the largest error by far where it is looked at."""
    inputs = draw("causal_attention", B=1, T=4200, HQ=1, H=1, D=16)
    inputs.sample_seed = seed
    assert _sampled.tokens(inputs)[0] == first
    op = ops.get("causal_attention")
    assert int(ops.compared(op.oracle(inputs)).sum()) < 300
    query, key = tokens(4200)
    assert "leaves out the query's own key" in diagnose(op, inputs, dense(inputs, key < query))
