"""NSA attention with and without a window: the oracle against the definition, the queries that the
oracle samples, draws, and work."""

import hashlib
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from nsabench import ops
from nsabench.checks.parity import EPSILON
from nsabench.model.vocabulary import DType
from nsabench.ops import _sequences, nsa_attention, nsa_without_window
from nsabench.ops._nsa_equations import LEAST_SCORE, OF_ONE_KEY, RESOLVED

SIZES = {"HQ": 4, "H": 2, "D": 16, "Dv": 8, "block": 4, "stride": 2, "block_size": 8}
SIZES |= {"n_selected": 4, "window": 5}
OP, WITHOUT = nsa_attention.OP, nsa_without_window.OP
LONG = 4096 + 7  # tokens; an oracle computes a sample of them


def drawn(dtype=DType.FLOAT32, distribution="dense", op="nsa_attention", **sizes):
    of = ops.get(op)
    known = {k: v for k, v in SIZES.items() if k in of.shape_model.model_fields}
    shape = of.shape_model.model_validate({"B": 2, "T": 60, **known, **sizes})
    return shape, of.draw(shape, dtype, distribution, 3, "cpu")


def attend(q, k):
    """Return the softmax weights of one query on its keys."""
    return torch.softmax(k @ q * q.shape[0] ** -0.5, 0)


def by_hand(inputs, x, row, t, head):
    """Return the gated sum of one query by section 3.3 of the paper. In the op without a window, a
    compressed key is the mean of a selection block."""
    o, group = inputs.options, x["q"].shape[2] // x["k"].shape[2]
    size = o["block_size"]
    length, stride = o.get("block", size), o.get("stride", size)
    kv = head // group
    ends = inputs.tensors.get("cu_seqlens", torch.tensor([0, x["q"].shape[1]])).tolist()
    start, end = next((a, z) for a, z in pairwise(ends) if a <= t < z)
    k, v, at = x["k"][row, start:end, kv], x["v"][row, start:end, kv], t - start
    first = range(0, at - length + 2, stride)
    q = x["q"][row, t, head]
    whole = x["gates"][row, t, head, 0] * torch.zeros_like(v[0])
    score = {}
    if len(first):
        kc, vc = (torch.stack([y[i : i + length].mean(0) for i in first]) for y in (k, v))
        whole = x["gates"][row, t, head, 0] * (attend(q, kc) @ vc)
        for other in range(kv * group, (kv + 1) * group):
            for i, weight in zip(first, attend(x["q"][row, t, other], kc), strict=True):
                for place in range(i, i + length, stride):
                    score[place // size] = score.get(place // size, 0.0) + weight.item()
    own = at // size
    forced = {0, own, max(own - 1, 0)}
    free = sorted((b for b in range(own + 1) if b not in forced), key=lambda b: -score.get(b, 0.0))
    chosen = forced | set(free[: o["n_selected"] - len(forced)])
    branches = [[i for i in range(at + 1) if i // size in chosen]]
    if "window" in o:
        branches.append(list(range(max(0, at - o["window"] + 1), at + 1)))
    for gate, keys in enumerate(branches, 1):
        whole = whole + x["gates"][row, t, head, gate] * (attend(q, k[keys]) @ v[keys])
    return whole


@pytest.mark.parametrize("distribution", OP.distributions)
@pytest.mark.parametrize("name", [OP.name, WITHOUT.name])
def test_the_oracle_and_its_gradients_are_those_of_the_definition(name, distribution):
    op = ops.get(name)
    _, inputs = drawn(op=name, distribution=distribution, T=44)
    x = {n: inputs.tensors[n].double().requires_grad_() for n in op.differentiable}
    out, grad_out = op.oracle(inputs), op.draw_grad(inputs, 5)
    total = torch.zeros((), dtype=torch.float64)
    for row, t, head in np.ndindex(*out.shape[:-1]):
        expected = by_hand(inputs, x, row, t, head)
        torch.testing.assert_close(out[row, t, head], expected.detach(), rtol=1e-9, atol=1e-12)
        total = total + (expected * grad_out[row, t, head].double()).sum()
    total.backward()
    for n, found in op.gradients(inputs, grad_out).items():
        torch.testing.assert_close(found, x[n].grad, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
@pytest.mark.parametrize("op", [OP, WITHOUT])
@pytest.mark.parametrize("tokens", [600, LONG])
def test_rounding_decides_no_selection_of_drawn_inputs(op, dtype, tokens):
    _, inputs = drawn(dtype, op=op.name, B=1, T=tokens)
    sampled = sample(op, inputs)
    assert not list(op.undecided(inputs, sampled))
    torch.manual_seed(0)
    inputs.tensors["q"][0, sampled] = torch.randn_like(inputs.tensors["q"][0, sampled])
    assert list(op.undecided(inputs, sampled)), "queries that were not drawn anew"


def sample(op, inputs):
    """Return the tokens whose outputs the oracle computes."""
    return ops.compared(op.oracle(inputs))[0, :, 0].nonzero().flatten()


def test_a_query_with_equal_scores_is_undecided():
    """Blocks of equal keys have equal scores: rounding decides which is chosen."""
    _, inputs = drawn(DType.BFLOAT16, B=1)
    inputs.tensors["k"][:, 6:34] = inputs.tensors["k"][:, 6:7]  # all keys of blocks 1 to 3
    tokens = {t for _, some, _ in OP.undecided(inputs, torch.arange(60)) for t in some.tolist()}
    assert min(tokens) >= 32  # four blocks or fewer are all selected
    assert {*range(40, 48)} <= tokens


@pytest.mark.parametrize("op", ["nsa_attention", "causal_attention"])
def test_a_long_sequence_is_sampled_with_its_last_query(op):
    _, inputs = drawn(DType.BFLOAT16, op=op, B=1, T=LONG)
    sampled = sample(ops.get(op), inputs)
    assert 200 <= len(sampled) <= 256
    assert int(sampled[-1]) == LONG - 1
    inputs.tensors["k"][0, :2000] *= 2
    assert torch.equal(sampled, sample(ops.get(op), inputs)), "it follows from the values"
    assert not torch.equal(sampled, sample(ops.get(op), replace(inputs, sample_seed=4)))


DRAW = f"""
import hashlib
from nsabench import ops

op = ops.get("nsa_attention")
shape = op.shape_model(B=1, T={LONG}, **{SIZES})
inputs = op.draw(shape, "bfloat16", "dense", 3, "cpu")
for tensor in (*inputs.tensors.values(), op.draw_grad(inputs, 5)):
    print(hashlib.sha256(tensor.float().numpy().tobytes()).hexdigest())
"""


def test_processes_that_share_nothing_draw_the_same_inputs_and_gradient():
    """The worker and the checker draw inputs independently."""
    elsewhere = subprocess.check_output([sys.executable, "-c", DRAW], text=True).split()
    _, inputs = drawn(DType.BFLOAT16, B=1, T=LONG)
    here = (*inputs.tensors.values(), OP.draw_grad(inputs, 5))
    digests = [hashlib.sha256(x.float().numpy().tobytes()).hexdigest() for x in here]
    assert len(digests) == 5 and elsewhere == digests


@pytest.mark.parametrize("op", ["nsa_attention", "causal_attention"])
@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_gradients_of_queries_that_are_not_sampled_do_not_reach_the_others(op, dtype, monkeypatch):
    """dk and dv of the sampled queries equal dk and dv of all queries, within the format's
    precision."""
    differentiated = ops.get(op)
    _, inputs = drawn(dtype, op=op, B=1, T=300)
    monkeypatch.setattr(_sequences, "MOST_COMPUTED", 100)
    monkeypatch.setattr(_sequences, "SAMPLE", 40)
    grad_out = differentiated.draw_grad(inputs, 5)
    assert bool((grad_out != 0).float().mean() > 0.99)
    some = differentiated.gradients(inputs, grad_out)
    monkeypatch.setattr(_sequences, "MOST_COMPUTED", 1000)
    every = differentiated.gradients(inputs, grad_out)
    # In the longest shipped case, a sampled query stands for so many times more queries than here.
    more_at_most = (131072 / 256) / (300 / 40)
    for name in ("k", "v"):
        off = float((some[name] - every[name]).norm() / every[name].norm())
        assert 0 < off * more_at_most**0.5 < EPSILON[dtype] / 4
    rows = ops.compared(some["q"])
    # The order of these float64 sums depends on which queries are computed together.
    assert (some["q"][rows] - every["q"][rows]).abs().max() < 1e-15 * every["q"].abs().max()


def test_the_work_is_that_of_the_branches():
    sizes = {"B": 2, "T": 4096, "HQ": 64, "H": 4, "D": 128}
    shape = OP.shape_model.model_validate(sizes)
    work = OP.work(shape, DType.BFLOAT16, "dense", 0)
    compressed = sum(max(0, (t + 1 - 32) // 16 + 1) for t in range(4096))
    selected = sum(min((t // 64) * 64 + t % 64 + 1, 15 * 64 + t % 64 + 1) for t in range(4096))
    assert selected > sum(min(t + 1, 512) for t in range(4096)), "the window shares its keys"
    assert work.flops == 2 * 2 * 64 * (compressed + selected) * 256
    elements = 2 * 4096 * (64 * (256 + 3) + 4 * 256)
    assert work.bytes_min == 2 * elements
    step = OP.step_work(shape, DType.BFLOAT16, "dense", 0)
    backward = OP.backward_work(shape, DType.BFLOAT16, "dense", 0)
    assert step.flops == work.flops + backward.flops and step.bytes_min == backward.bytes_min


def test_without_a_window_there_are_two_gates_and_the_work_of_two_branches():
    shape, inputs = drawn(op=WITHOUT.name, T=44)
    assert inputs.tensors["gates"].shape == (2, 44, 4, 2)
    gradients = WITHOUT.gradients(inputs, WITHOUT.draw_grad(inputs, 1))
    assert gradients["gates"].shape == (2, 44, 4, 2)
    work = WITHOUT.work(shape, DType.BFLOAT16, "dense", 0)
    elements = 2 * 44 * (4 * (16 + 8 + 2) + 2 * (16 + 8))
    ended = sum((t + 1) // 8 for t in range(44))
    seen = sum((min(t // 8 + 1, 4) - 1) * 8 + t % 8 + 1 for t in range(44))
    assert (work.bytes_min, work.flops) == (2 * elements, 2 * 2 * 4 * (ended + seen) * (16 + 8))
    assert WITHOUT.differentiable_elements(shape) == sum(
        inputs.tensors[name].numel() for name in WITHOUT.differentiable
    )


@pytest.mark.parametrize("dtype", [DType.BFLOAT16, DType.FLOAT16])
def test_scores_of_one_rounded_key_are_off_by_less_than_tells_them_apart(dtype):
    """As in kernels, keys and scaled queries are rounded to the dtype."""
    sizes = {"B": 1, "T": 2048, "HQ": 16, "H": 1, "D": 128, "Dv": 128}
    _, inputs = drawn(dtype, op=WITHOUT.name, **sizes, block_size=64, n_selected=16)
    q, k = inputs.tensors["q"][0, ::4], inputs.tensors["k"][0, :, 0]
    keys, scale = k.double().unflatten(0, (-1, 64)).mean(1), inputs.options["sm_scale"]
    ended = torch.arange(keys.shape[0]) * 64 + 64 <= torch.arange(0, 2048, 4).unsqueeze(1) + 1

    def scores(q, keys):
        logits = (q.double() @ keys.mT).masked_fill(~ended.unsqueeze(1), float("-inf"))
        return logits.softmax(-1).nan_to_num(0.0).sum(1)

    right = scores(q.double() * scale, keys)
    rounded = scores((q.float() * scale).to(q.dtype), keys.to(q.dtype).double())
    off = ((rounded - right).abs() / right)[right > LEAST_SCORE].max()
    assert off < RESOLVED[str(q.dtype)] * OF_ONE_KEY


def test_sizes_that_do_not_fit_together_are_refused():
    for op, wrong, size in (
        (OP.name, {"HQ": 3}, "HQ=3"),
        (OP.name, {"stride": 3}, "stride=3"),
        (OP.name, {"n_selected": 2}, "n_selected=2"),
        (WITHOUT.name, {"n_selected": 2}, "n_selected=2"),
    ):
        with pytest.raises(ValueError, match=size):
            drawn(op=op, **wrong)
