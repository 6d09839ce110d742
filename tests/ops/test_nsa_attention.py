"""The op of the whole attention: its oracle against the definition, the rows that it leaves out,
the queries that it looks at, and its work."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nsabench import ops
from nsabench.assessment.checks.parity import EPSILON
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs, Shape, _nsa, _sampled, rows_left_out

SIZES = {"HQ": 4, "H": 2, "D": 16, "Dv": 8, "block": 4, "stride": 2, "block_size": 8}
SIZES |= {"n_selected": 4, "window": 5}
OP = ops.get("nsa_attention")


def drawn(
    dtype: DType = DType.FLOAT32,
    distribution: str = "dense",
    op: str = "nsa_attention",
    **sizes: int,
) -> tuple[Shape, Inputs]:
    of = ops.get(op)
    known = {k: v for k, v in SIZES.items() if k in of.shape_model.model_fields}
    shape = of.shape_model.model_validate({"B": 2, "T": 60, **known, **sizes})
    return shape, of.draw(shape, dtype, distribution, 3, "cpu")


def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """One query on its keys, and its weights."""
    return torch.softmax(k @ q * q.shape[0] ** -0.5, 0)


def by_hand(
    inputs: Inputs, x: dict[str, torch.Tensor], row: int, t: int, head: int
) -> torch.Tensor:
    """The gated sum of a query, token by token, as section 3.3 of the paper has it."""
    o, group = inputs.options, x["q"].shape[2] // x["k"].shape[2]
    kv = head // group
    cu = inputs.tensors.get("cu_seqlens", torch.tensor([0, x["q"].shape[1]])).tolist()
    start = max(e for e in cu[:-1] if e <= t)
    end = min(e for e in cu[1:] if e > t)
    k, v, at = x["k"][row, start:end, kv], x["v"][row, start:end, kv], t - start
    first = range(0, at - o["block"] + 2, o["stride"])
    q = x["q"][row, t, head]
    whole = x["gates"][row, t, head, 0] * 0
    score: dict[int, float] = {}
    if len(first):
        kc = torch.stack([k[i : i + o["block"]].mean(0) for i in first])
        vc = torch.stack([v[i : i + o["block"]].mean(0) for i in first])
        whole = whole + x["gates"][row, t, head, 0] * (attend(q, kc, vc) @ vc)
        for other in range(kv * group, (kv + 1) * group):
            for i, weight in zip(first, attend(x["q"][row, t, other], kc, vc), strict=True):
                for place in range(i, i + o["block"], o["stride"]):
                    block = place // o["block_size"]
                    score[block] = score.get(block, 0.0) + weight.item()
    own = at // o["block_size"]
    forced = {0, own, max(own - 1, 0)}
    free = sorted((b for b in range(own + 1) if b not in forced), key=lambda b: -score.get(b, 0.0))
    chosen = forced | set(free[: o["n_selected"] - len(forced)])
    for gate, keys in (
        (1, [i for i in range(at + 1) if i // o["block_size"] in chosen]),
        (2, list(range(max(0, at - o["window"] + 1), at + 1))),
    ):
        whole = whole + x["gates"][row, t, head, gate] * (attend(q, k[keys], v[keys]) @ v[keys])
    return whole


@pytest.mark.parametrize("distribution", OP.distributions)
def test_the_oracle_and_its_gradients_are_those_of_the_definition(distribution: str) -> None:
    _, inputs = drawn(distribution=distribution)
    x = {
        name: t.double().requires_grad_()
        for name, t in inputs.tensors.items()
        if name in OP.differentiable
    }
    out, grad_out = OP.oracle(inputs), OP.draw_grad(inputs, 5)
    assert bool(torch.isfinite(out).all())
    total = torch.zeros((), dtype=torch.float64)
    for row, t, head in np.ndindex(*out.shape[:3]):
        expected = by_hand(inputs, x, row, t, head)
        torch.testing.assert_close(out[row, t, head], expected.detach(), rtol=1e-9, atol=1e-12)
        total = total + (expected * grad_out[row, t, head].double()).sum()
    right = torch.autograd.grad(total, list(x.values()))
    for got, expected in zip(OP.gradients(inputs, grad_out).values(), right, strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-8, atol=1e-9)


def test_what_hangs_on_rounding_is_left_out_and_counted() -> None:
    """Two blocks of the same keys have the same scores: which is chosen is the toss of a coin."""
    _, inputs = drawn(DType.BFLOAT16, B=1)
    k = inputs.tensors["k"]
    k[:, 6:34] = k[:, 6:7]  # all compressed keys of blocks 1 to 3 are alike
    out = OP.oracle(inputs)
    hangs = out[..., 0].isinf()
    assert not hangs[:, :32].any()  # four blocks or fewer are all selected
    assert hangs[:, 40:48].all()
    compared, left_out = rows_left_out.counts(out)
    assert (compared, left_out) == (int((~hangs).sum()), int(hangs.sum()))
    grad_out = OP.draw_grad(inputs, 5)
    quiet = grad_out.double().square().mean(-1).sqrt() < 1e-4
    assert torch.equal(quiet, hangs)
    grads = OP.gradients(inputs, grad_out)
    assert torch.equal(grads["q"][..., 0].isinf(), hangs)
    assert torch.isfinite(grads["k"]).all() and torch.isfinite(grads["v"]).all()


def test_ties_that_are_exact_go_to_the_lowest_index_and_are_left_out() -> None:
    scores = torch.tensor([[9.0, 1.0, 1.0, 0.5, 0.0, 0.0]]).double()
    position = torch.tensor([5 * 8])
    chosen, hangs = _nsa.choose(_nsa.rank(scores, position, 8), 4, 1e-3)
    assert sorted(chosen[0].tolist()) == [0, 1, 4, 5] and hangs.tolist() == [True]
    assert _nsa.choose(_nsa.rank(scores, position, 8), 5, 1e-3)[1].tolist() == [False]


@pytest.mark.parametrize("op", ["nsa_attention", "causal_attention"])
def test_of_many_queries_some_are_looked_at_and_always_the_last(op: str) -> None:
    _, inputs = drawn(DType.BFLOAT16, op=op, B=1, T=_sampled.ALL + 7)
    out = ops.get(op).oracle(inputs)
    looked_at = ~out[0, :, 0, 0].isnan()
    assert 200 <= int(looked_at.sum()) <= _sampled.SOME
    assert bool(looked_at[-1]) and bool(torch.isfinite(out[0, -1]).all())
    _, others = drawn(DType.BFLOAT16, op=op, B=1, T=_sampled.ALL + 7)
    others.tensors["q"][0, :2000] *= 2
    assert not torch.equal(_sampled.tokens(inputs), _sampled.tokens(others))


def test_which_queries_are_looked_at_does_not_follow_from_the_values_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _, inputs = drawn(DType.BFLOAT16, B=1, T=_sampled.ALL + 7)
    here = _sampled.tokens(inputs)
    assert torch.equal(here, _sampled.tokens(inputs)), "the same for oracle and gradients"
    monkeypatch.setattr(_sampled, "_SECRET", _sampled._SECRET ^ 1)
    assert not torch.equal(here, _sampled.tokens(inputs))


@pytest.mark.parametrize("op", ["nsa_attention", "causal_attention"])
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_gradients_that_are_not_looked_at_do_not_reach_those_that_are(
    op: str, dtype: DType, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dk and dv of the queries that are looked at are those of all, to what the format resolves."""
    of = ops.get(op)
    _, inputs = drawn(dtype, op=op, B=1, T=300)
    monkeypatch.setattr(_sampled, "ALL", 100)
    monkeypatch.setattr(_sampled, "SOME", 40)
    grad_out = of.draw_grad(inputs, 5)
    assert bool((grad_out != 0).float().mean() > 0.99)
    some = of.gradients(inputs, grad_out)
    monkeypatch.setattr(_sampled, "ALL", 1000)
    every = of.gradients(inputs, grad_out)
    # How many more there are to one that is looked at in the longest case that ships.
    more_at_most = (131072 / 256) / (300 / 40)
    for name in ("k", "v"):
        off = float((some[name] - every[name]).norm() / every[name].norm())
        assert 0 < off * more_at_most**0.5 < EPSILON[dtype] / 4
    rows = rows_left_out.compared(some["q"])
    # In float64, but not of sums in the same order: that hangs on which queries are beside one.
    assert (some["q"][rows] - every["q"][rows]).abs().max() < 1e-15 * every["q"].abs().max()


def test_the_work_is_that_of_its_parts() -> None:
    shape = OP.shape_model.model_validate({"B": 2, "T": 4096, "HQ": 64, "H": 4, "D": 128})
    parts = OP.parts(shape, DType.BFLOAT16, "dense", 0)
    assert list(parts) == ["compression", "compressed", "selected", "window", "gated_sum"]
    whole = OP.work(shape, DType.BFLOAT16, "dense", 0)
    assert whole.flops < sum(part.flops for part in parts.values())
    assert whole.flops >= max(part.flops for part in parts.values())
    assert whole.bytes_min < sum(part.bytes_min for part in parts.values())
    seen = sum(min(t + 1, 512) for t in range(4096))
    assert parts["window"].flops == 2 * 2 * 64 * seen * 256
    seen = sum(min((t // 64) * 64 + t % 64 + 1, 15 * 64 + t % 64 + 1) for t in range(4096))
    assert parts["selected"].flops == 2 * 2 * 64 * seen * 256
    step = OP.step_work(shape, DType.BFLOAT16, "dense", 0)
    backward = OP.backward_work(shape, DType.BFLOAT16, "dense", 0)
    assert step.flops == whole.flops + backward.flops and step.bytes_min == backward.bytes_min


def test_sizes_that_do_not_fit_together_are_refused() -> None:
    for wrong, sentence in (
        ({"HQ": 3}, "cannot share"),
        ({"stride": 3}, "does not divide"),
        ({"n_selected": 2}, "does not hold"),
    ):
        with pytest.raises(ValueError, match=sentence):
            OP.shape_model.model_validate({"B": 1, "T": 60, **SIZES, **wrong})
