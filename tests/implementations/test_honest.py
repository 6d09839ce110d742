"""No honest baseline on a CPU is further from the oracle than the arithmetic explains."""

import pytest
import torch

from nsabench import Unsupported, ops, registry
from nsabench.checker.compare import Errors, measure
from nsabench.checks import DeviceLimits, parity
from nsabench.model.vocabulary import Direction, DType, Role, Runs
from nsabench.ops import Inputs
from tests.implementations.controls.test_every_op import SHAPES
from tests.runs import record

pytestmark = pytest.mark.usefixtures("one_thread")
SEEDS = 6  # for FAR_APART: rounding shows in rows whose two largest logits are near each other
OF_BLOCKS = {"dense": {"S": 12}}  # of selection_blocks
honest = [i for i in registry.load() if i.role is Role.BASELINE and Runs.CPU in i.devices]
FAR_APART = ("large_logits", "one_hot")


def results(item, inputs, direction):
    """Yield the errors of an output, or of each gradient."""
    op, tensors = ops.get(item.op), dict(inputs.tensors)
    if direction is Direction.FORWARD:
        found = {"output": (item.call(*tensors.values(), **inputs.options), op.oracle(inputs))}
    else:
        leaves = {n: tensors[n].clone().requires_grad_() for n in op.differentiable}
        out = item.call(*(tensors | leaves).values(), **inputs.options)
        grad_out = torch.randn_like(out)
        wanted = op.gradients(inputs, grad_out)
        given = torch.autograd.grad(out, [leaves[n] for n in wanted], grad_out)
        found = {f"d{n}": (g, wanted[n]) for n, g in zip(wanted, given, strict=True)}
    for name, (result, oracle) in found.items():
        yield measure(name, result.detach(), oracle, 0.0, sampled=op.samples_queries)


def accused(op, distribution, dtype, direction):
    sizes = SHAPES[op] | (OF_BLOCKS.get(distribution, {}) if op == "selection_blocks" else {})
    shape = ops.get(op).shape_model.model_validate(sizes)
    fields = {"op": op, "distribution": distribution, "dtype": dtype, "direction": direction}
    some = [i for i in honest if i.op == op and distribution in (i.distributions or [distribution])]
    records = []
    for seed in range(SEEDS if distribution in FAR_APART else 1):
        torch.manual_seed(seed)
        inputs = ops.get(op).draw(shape, dtype, distribution, seed=seed, device="cpu")
        for item in some:
            try:
                found = list(results(item, inputs, direction))
            except Unsupported:
                continue
            worst = Errors.worst(found)
            records.append(
                record(
                    item.name,
                    Role.BASELINE,
                    shape=shape.model_dump(),
                    case_id=str(seed),
                    rel_l2=worst.rel_l2,
                    worst_row=worst.worst_row,
                    worst_row_at=worst.worst_row_at,
                    **fields,
                )
            )
    assert records
    return [
        f"{f.implementation}: {f.sentence}" for f in parity.check_parity(records, DeviceLimits())
    ]


@pytest.mark.parametrize("op", SHAPES)
def test_no_honest_baseline_is_accused(op):
    found = {
        (distribution, dtype, direction): accused(op, distribution, dtype, direction)
        for distribution in ops.get(op).distributions
        for direction in ops.get(op).directions
        for dtype in DType
        if distribution not in ("recorded", "all_empty") and direction is not Direction.STEP
    }
    assert {case: sentences for case, sentences in found.items() if sentences} == {}


@pytest.mark.parametrize("dtype", list(DType))
def test_large_logits_hide_no_key_that_counts(dtype):
    """A row whose heaviest key is lost is off by far more than such logits explain."""
    op = ops.get("selection_rows")
    shape = op.shape_model.model_validate(SHAPES["selection_rows"])
    inputs = op.draw(shape, dtype, "large_logits", seed=0, device="cpu")
    q, k, v = inputs.tensors.values()
    heaviest = torch.einsum("nhd,nkd->nhk", q.double(), k.double())[0, 0].argmax()
    lost = v.clone()
    lost[0, heaviest] = 0
    wrong = op.oracle(Inputs({"q": q, "k": k, "v": lost}, inputs.options)).to(q.dtype)
    errors = measure("output", wrong, op.oracle(inputs), 0.0)
    fields = {"op": op.name, "distribution": "large_logits", "dtype": dtype}
    fields |= {"worst_row": errors.worst_row, "worst_row_at": errors.worst_row_at}
    [finding] = parity.check_parity(
        [record("mine", Role.CANDIDATE, shape=shape.model_dump(), **fields)], DeviceLimits()
    )
    assert "row output[0, " in finding.sentence
