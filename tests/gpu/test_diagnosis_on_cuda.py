"""Diagnoses of large outputs and gradients on a CUDA device."""

import math

import pytest
import torch

from nsabench import ops
from nsabench.checker.diagnosis.gradients import diagnose_gradient
from nsabench.checker.diagnosis.outputs import diagnose

pytestmark = [pytest.mark.gpu, pytest.mark.untimed]


DEVICE = "cuda"
PATIENCE_S = 30.0  # so long that a busy machine does not change the diagnosis
HEADS = {"B": 1, "HQ": 64, "H": 4, "D": 128}
STEP = {"B": 8, "S": 8192, "HQ": 64, "H": 4, "D": 128}
BLOCKS = {"block_size": 64, "n_selected": 16}
CASES = (
    ("selection_rows", "dense", {"N": 256, "H": 8, "D": 128, "L": 512}),
    ("selection_varlen", "spread", {"N": 256, "H": 8, "D": 128, "L": 1024}),
    (
        "selection_ranges",
        "mixed",
        {"B": 1, "S": 256, "G": 4, "H": 4, "D": 64, "S_kv": 4096, "n_spans": 8, "L": 1024},
    ),
    ("selection_blocks", "random", {**HEADS, "T": 2048, "S": 16}),
    ("selection_blocks", "packed", {**HEADS, "T": 2048, "S": 16}),
    ("sliding_window", "dense", {**HEADS, "T": 2048, "window": 512}),
    ("sliding_window", "packed", {**HEADS, "T": 300, "B": 5, "window": 512}),
    ("compressed", "dense", {**HEADS, "T": 2048, "block": 32, "stride": 16}),
    ("compressed", "packed", {**HEADS, "T": 300, "B": 5, "block": 32, "stride": 16}),
    ("decode_step", "random", {**STEP, **BLOCKS, "block": 32, "stride": 16, "window": 512}),
    ("decode_selected", "random", {**STEP, **BLOCKS}),
    ("decode_window", "random", {**STEP, "window": 512}),
    ("decode_dense", "random", STEP),
)


@pytest.mark.parametrize(("name", "distribution", "shape"), CASES)
def test_a_mistake_is_named_and_noise_is_not(name, distribution, shape):
    op = ops.get(name)
    sizes = op.shape_model.model_validate(shape)
    inputs = op.draw(sizes, "bfloat16", distribution, 1, DEVICE)
    right = op.oracle(inputs)
    scale = inputs.options["sm_scale"] * math.log(2)
    other = op.oracle(ops.Inputs(inputs.tensors, {**inputs.options, "sm_scale": scale}))
    found = diagnose(op, inputs, other.bfloat16(), time_limit_s=PATIENCE_S)
    assert found.id == "log2e-missing"
    noisy = right + torch.randn_like(right)
    found = diagnose(op, inputs, noisy.bfloat16(), time_limit_s=PATIENCE_S)
    assert found.id == "unexplained"


@pytest.mark.parametrize(
    ("name", "distribution", "shape"), [case for case in CASES if "T" in case[2] or "G" in case[2]]
)
def test_a_mistake_in_a_gradient_is_named(name, distribution, shape):
    op = ops.get(name)
    sizes = op.shape_model.model_validate(shape)
    inputs = op.draw(sizes, "bfloat16", distribution, 1, DEVICE)
    grad_out = op.draw_grad(inputs, 2)
    right = op.gradients(inputs, grad_out)
    group = shape["H"] if "G" in shape else shape["HQ"] // shape["H"]
    head = torch.arange(grad_out.shape[-2], device=DEVICE).unsqueeze(1)
    one = op.gradients(inputs, grad_out * (head % group == 0))["v"]
    given = op, inputs, grad_out
    found = diagnose_gradient(*given, "dv", one.bfloat16(), right["v"], time_limit_s=PATIENCE_S)
    assert found.id == "query-head-only"
    noisy = right["k"] + right["k"].std() * torch.randn_like(right["k"])
    found = diagnose_gradient(*given, "dk", noisy.bfloat16(), right["k"], time_limit_s=PATIENCE_S)
    assert found.id == "unexplained"
