"""Every implementation and every formula against nsabench's oracles, on what nsabench draws."""

from dataclasses import asdict

import pytest
import torch
from cases import DEVICE, HERE, TOLERANCE, exact_nsa, exact_step, results
from nsa_kernels.band.naive import naive_compressed, naive_sliding_window
from nsa_kernels.integrations import nsabench as adapters
from nsa_kernels.selection.blocks.naive import naive_blocks
from nsa_kernels.selection.ranges.naive import naive_ranges
from nsa_kernels.selection.rows.naive import naive_rows
from nsa_kernels.selection.varlen.naive import naive_varlen

from nsabench import ops
from nsabench.model.vocabulary import Direction, DType

IMPLEMENTATIONS = [
    ("selection_rows", adapters.rows_group),
    ("selection_rows", adapters.rows_per_head),
    ("selection_varlen", adapters.varlen_items),
    ("selection_ranges", adapters.ranges_in_place),
    ("selection_blocks", adapters.blocks),
    ("selection_blocks", adapters.blocks_query_major),
    ("sliding_window", adapters.sliding_window),
    ("compressed", adapters.compressed),
    ("decode_compressed", adapters.decode_compressed),
    ("decode_selected", adapters.decode_selected),
    ("decode_window", adapters.decode_window),
    ("decode_dense", adapters.decode_dense),
    ("decode_step", adapters.decode_step),
    ("nsa_attention", adapters.nsa),
]
FORWARD_ONLY = (adapters.blocks_query_major, adapters.nsa)  # gradients of nsa: test_whole.py
NUMBERS = {
    naive_rows: ("sm_scale",),
    naive_varlen: ("sm_scale",),
    naive_ranges: ("sm_scale",),
    naive_blocks: ("block_size", "sm_scale"),
    naive_sliding_window: ("window",),
    naive_compressed: ("block", "stride"),
    exact_nsa: ("block", "stride", "block_size", "n_selected", "window"),
}
FORMULAS = [
    ("selection_rows", naive_rows),
    ("selection_varlen", naive_varlen),
    ("selection_ranges", naive_ranges),
    ("selection_blocks", naive_blocks),
    ("sliding_window", naive_sliding_window),
    ("compressed", naive_compressed),
    ("decode_step", exact_step),
    ("nsa_attention", exact_nsa),
]


def cells(calls, *without):
    # These two distributions need a greater S than that of small shapes.
    without = (*without, ("selection_blocks", "dense"), ("selection_blocks", "recorded"))
    return [
        (name, distribution, call)
        for name, call in calls
        for distribution in ops.get(name).distributions
        if (name, distribution) not in without
    ]


def here():
    """Return all cells on a GPU. In the interpreter, an op's first implementation has all
    distributions, and the others have the first one."""
    first = dict(reversed(IMPLEMENTATIONS)).values()
    return [
        (name, distribution, call)
        for name, distribution, call in cells(IMPLEMENTATIONS)
        if DEVICE == "cuda" or call in first or distribution == ops.get(name).distributions[0]
    ]


def drawn(name, distribution, dtype):
    """Draw inputs of the op's second CPU shape, which no tile divides. Packed blocks take the first
    shape, whose batch is one."""
    op = ops.get(name)
    shape = op.check_shapes["cpu"][distribution != "packed" or name != "selection_blocks"]
    sizes = {key: int(value) for key, value in (x.split("=") for x in shape.split(","))}
    kind = DType(str(dtype).removeprefix("torch."))
    return op.draw(op.shape_model(**sizes), kind, distribution, 1, DEVICE)


def check(got, want, near):
    assert got.shape == want.shape
    largest = float(want.abs().max()) if want.numel() else 0.0
    torch.testing.assert_close(got.double(), want, atol=near * max(1.0, largest), rtol=0)


@pytest.mark.parametrize(("name", "distribution", "call"), here())
def test_implementations(name, distribution, call):
    op = ops.get(name)
    for dtype in HERE if distribution == op.distributions[0] else (torch.float32,):
        inputs = drawn(name, distribution, dtype)
        backward = Direction.BACKWARD in op.directions and call not in FORWARD_ONLY
        leaves = [inputs.tensors[key].requires_grad_() for key in op.differentiable if backward]
        out = call(*inputs.tensors.values(), **inputs.options)
        near = 1e-2 if distribution == "large_logits" else TOLERANCE[dtype]
        assert out.dtype == dtype
        check(out.detach(), op.oracle(inputs).detach(), near)
        if backward:
            weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(0)).to(out)
            got = torch.autograd.grad(out, leaves, weight)
            for a, w in zip(got, op.gradients(inputs, weight).values(), strict=True):
                check(a, w, near)


WITHOUT_PACKED = (("sliding_window", "packed"), ("compressed", "packed"))


@pytest.mark.parametrize(("name", "distribution", "formula"), cells(FORMULAS, *WITHOUT_PACKED))
def test_formulas(name, distribution, formula):
    inputs = drawn(name, distribution, torch.float32)
    given = [x.double() if x.is_floating_point() else x for x in inputs.tensors.values()]
    options = {key: inputs.options[key] for key in NUMBERS.get(formula, ())}
    if name == "decode_step":
        options = asdict(inputs.options["sizes"])
        given.append([inputs.tensors["k"].shape[2]] * len(given[0]))
    elif distribution == "packed":
        options["cu_seqlens"] = given.pop()
    out = results(formula(*given, **options))[0]
    assert out.dtype == torch.float64
    check(out, ops.get(name).oracle(inputs), 1e-12)
