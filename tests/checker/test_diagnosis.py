"""Mistakes that no kernel in `mutants/` makes are named, also where queries are sampled."""

import math
import time

import pytest
import torch

from nsabench import ops
from nsabench.checker.diagnosis.gradients import diagnose_gradient
from nsabench.checker.diagnosis.outputs import diagnose as diagnose_within
from nsabench.checker.diagnosis.search import read_sentences
from nsabench.implementations.baselines.nsa_attention import attend_without_window
from nsabench.model.vocabulary import DType
from nsabench.ops import Inputs

OP = ops.get("selection_rows")


def diagnose(op, inputs, output):
    """Diagnose without a tight time limit, so that a busy machine does not change the result."""
    return diagnose_within(op, inputs, output, time_limit_s=60.0)


def draw(N=8, H=4, D=64, L=256, dtype=DType.FLOAT16, seed=1):
    shape = OP.shape_model.model_validate({"N": N, "H": H, "D": D, "L": L})
    return OP.draw(shape, dtype, "dense", seed, "cpu")


def attend(inputs, keys=slice(None), k=None, v=None):
    q, k, v = (
        inputs.tensors["q"],
        *(inputs.tensors[n] if t is None else t for n, t in (("k", k), ("v", v))),
    )
    k, v = k[:, keys], v[:, keys]
    scores = q.double() @ k.double().mT * inputs.options["sm_scale"]
    return (torch.softmax(scores, -1) @ v.double()).to(q.dtype)


MISTAKES = {
    "plain-mean": lambda i: i.tensors["v"].mean(1, keepdim=True).expand(-1, 4, -1),
    "no-maximum": lambda i: (torch.exp(scores(i).double()) @ i.tensors["v"].double()).half(),
    "no-softmax": lambda i: scores(i) @ i.tensors["v"],
    "constant-offset": lambda i: attend(i) + 0.005,
    "constant-factor": lambda i: attend(i) * 1.1,
    "key-zero-twice": lambda i: with_keys_again(i, slice(0, 1)),
}


def with_keys_again(inputs, keys):
    """Count some keys twice."""
    twice = {n: torch.cat([x, x[:, keys]], 1) for n, x in inputs.tensors.items() if n != "q"}
    return attend(inputs, **twice)


def scores(inputs):
    return inputs.tensors["q"] @ inputs.tensors["k"].mT * inputs.options["sm_scale"]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_named(mistake):
    inputs = draw()
    assert diagnose(OP, inputs, MISTAKES[mistake](inputs)).id == mistake


def test_keys_that_two_tiles_share_are_named():
    inputs = draw(L=77)
    found = diagnose(OP, inputs, with_keys_again(inputs, slice(13, 64)))
    assert found.id == "tiles-overlap"
    assert "13" in found.mistake and "63" in found.mistake


def test_what_nothing_explains_is_at_least_located():
    inputs = draw()
    output = attend(inputs)
    output[6:, 1] += torch.randn(64, generator=torch.Generator().manual_seed(0))
    found = diagnose(OP, inputs, output)
    assert found.id == "unexplained"
    assert "dimension 0 (size 8): index 6 to 7, dimension 1 (size 4): index 1" in found.mistake


def test_a_mistake_in_a_few_rows_of_many_is_found():
    inputs = draw(N=300, D=32, L=512)
    output = attend(inputs)
    output[101:104] = attend(inputs, slice(0, 448))[101:104]
    found = diagnose(OP, inputs, output)
    assert found.id == "first-keys-only"
    assert "448" in found.mistake and "dimension 0 (size 300): index 101 to 103" in found.mistake


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_what_is_not_finite_is_located(value):
    inputs = draw()
    output = attend(inputs)
    output[5:] = value
    found = diagnose(OP, inputs, output)
    assert found.id == "not-finite"
    assert "768 of 2048" in found.mistake and "dimension 0 (size 8): index 5 to 7" in found.mistake


@pytest.mark.parametrize("dtype", [DType.FLOAT16, DType.BFLOAT16])
def test_it_is_quick_and_thins_large_cases_out(dtype):
    inputs = draw(N=256, H=8, D=128, L=512, dtype=dtype)
    wrong = attend(inputs, slice(0, 64))
    start = time.process_time()  # CPU time of all threads, since the machine may be busy
    found = diagnose_within(OP, inputs, wrong)
    assert time.process_time() - start < 3
    assert found.id == "first-keys-only"


def test_the_smallest_case():
    inputs = draw(N=1, H=1, D=1, L=1)
    assert diagnose(OP, inputs, torch.zeros(1, 1, 1, dtype=torch.float16)).id


PACKED = {
    "selection_varlen": {"N": 30, "H": 4, "D": 32, "L": 90},
    "selection_ranges": {"B": 2, "S": 6, "G": 2, "H": 4, "D": 32, "n_spans": 4}
    | {"S_kv": 300, "L": 150},
}


def draw_packed(name, distribution):
    op = ops.get(name)
    shape = op.shape_model.model_validate(PACKED[name])
    return op, op.draw(shape, DType.FLOAT16, distribution, 1, "cpu")


def test_an_op_from_outside_may_be_called_like_a_module_of_diagnoses():
    op = type("Outside", (type(OP),), {"name": "weights"})()
    inputs = draw()
    assert diagnose(op, inputs, attend(inputs) * 1.1).id == "constant-factor"


def test_where_a_mistake_shows_is_not_where_it_is_largest():
    """All heads lose the same key. Its weight differs between heads, but no head is the place of
    the mistake."""
    inputs = draw()
    assert " in dimension" not in diagnose(OP, inputs, attend(inputs, slice(0, 255))).mistake


@pytest.mark.parametrize("name", PACKED)
def test_nothing_selected_has_nothing_to_be_mistaken_in(name):
    op, inputs = draw_packed(name, "all_empty")
    assert diagnose(op, inputs, op.oracle(inputs).half() + 1).id


def test_a_factor_near_one_has_digits_that_tell_it_from_one():
    inputs = draw()
    found = diagnose(OP, inputs, (OP.oracle(inputs) * (1 + 2e-5)).float())
    assert found.id == "constant-factor" and "1.00002" in found.mistake


def test_each_sentence_says_what_to_look_at():
    for name, sentence in read_sentences().items():
        assert name.replace("-", "").isalnum() and name == name.lower()
        mistake, _, advice = sentence.partition(": ")
        assert mistake and advice.startswith("look "), name


SIZES = {"HQ": 4, "H": 2, "D": 32}
NSA = {**SIZES, "block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 12}


def draw_of(op, distribution="dense", **sizes):
    found = ops.get(op)
    shape = found.shape_model.model_validate(sizes)
    return found.draw(shape, DType.FLOAT16, distribution, 1, "cpu")


def changed(inputs, tensors, **options):
    return Inputs({**inputs.tensors, **tensors}, {**inputs.options, **options})


def gated(change):
    return lambda inputs: changed(inputs, {"gates": change(inputs.tensors["gates"])})


OF_NSA = {
    "branch-lost": gated(lambda g: g * g.new_tensor([1.0, 0.0, 1.0])),
    "gates-ignored": gated(torch.ones_like),
    "window-size": lambda i: changed(i, {}, window=11),
}
WITHOUT_WINDOW = {
    "branch-lost": gated(lambda g: g * g.new_tensor([1.0, 0.0])),
    "gates-exchanged": gated(lambda g: g.flip(-1)),
    "block-count": lambda i: changed(i, {}, n_selected=3),
}


@pytest.mark.parametrize("mistake", WITHOUT_WINDOW)
def test_a_mistake_in_nsa_without_a_window_is_named(mistake):
    inputs = draw_of("nsa_without_window", B=1, T=120, **SIZES, block_size=16, n_selected=4)
    wrong = WITHOUT_WINDOW[mistake](inputs)
    output = attend_without_window(*wrong.tensors.values(), **wrong.options)
    assert diagnose(ops.get("nsa_without_window"), inputs, output).id == mistake


@pytest.mark.parametrize(
    ("name", "mistake"), [("dq", "branch-lost"), ("dv", "window-size"), ("dk", "gates-ignored")]
)
def test_a_mistake_in_a_gradient_of_nsa_is_named(name, mistake):
    op, inputs = ops.get("nsa_attention"), draw_of("nsa_attention", B=1, T=120, **NSA)
    grad_out = op.draw_grad(inputs, 3)
    by = name.removeprefix("d")
    right = op.gradients(inputs, grad_out)[by]
    wrong = op.gradients(OF_NSA[mistake](inputs), grad_out)[by]
    wrong = torch.where(wrong.isfinite(), wrong, 7.0).half()  # rows that the oracle leaves out
    found = diagnose_gradient(op, inputs, grad_out, name, wrong, right, time_limit_s=60.0)
    assert found.id == mistake and found.mistake.startswith(name)


def dense(inputs, mask):
    """Attend under a mask, bool [T, T]: which keys each query sees."""
    q, k, v = (inputs.tensors[name].double().transpose(1, 2) for name in ("q", "k", "v"))
    k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], 1) for x in (k, v))
    scores = (q @ k.mT * inputs.options["sm_scale"]).masked_fill(~mask, float("-inf"))
    return (torch.softmax(scores, -1) @ v).nan_to_num().transpose(1, 2).half()


def tokens(at):
    index = torch.arange(at)
    return index.unsqueeze(1), index.unsqueeze(0)


@pytest.mark.parametrize(("seed", "first"), [(11, 2), (3, 0)])
def test_a_mistake_is_named_where_queries_are_sampled(seed, first):
    """Without its own key, query 0 has no key. If it is sampled, its zero is the largest error."""
    inputs = draw_of("causal_attention", B=1, T=4200, HQ=1, H=1, D=16)
    inputs.sample_seed = seed
    sampled = ops.compared(ops.get("causal_attention").oracle(inputs))[0, :, 0].nonzero()
    assert len(sampled) < 300 and sampled[0] == first
    query, key = tokens(4200)
    found = diagnose(ops.get("causal_attention"), inputs, dense(inputs, key < query))
    assert found.id == "last-key-lost"
