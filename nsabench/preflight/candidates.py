"""Calls the candidates of a case on a pretended GPU and collects their launches."""

from __future__ import annotations

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nsabench import ops
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, Status
from nsabench.ops import Inputs
from nsabench.preflight import pretend, record
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.record import Call
from nsabench.registry import Implementation
from nsabench.worker.guard import guarded

SMALL_BYTES = 256 << 20  # the largest inputs that are made with values


def launches(item: Implementation, case: Case, architecture: Architecture) -> list[Call]:
    """Return what a call on the case launches. Raises `Failure` if it cannot be called.

    The tensors have no memory at first. Code that reads values fails on those, and is called again
    with tensors on the CPU, if they are small.
    """
    try:
        return _attempt(item, case, architecture, "meta")
    except Failure as first:
        if first.status is Status.UNSUPPORTED:
            raise
        if ops.work(case).bytes_min > SMALL_BYTES:
            raise Failure(
                Status.SKIPPED, f"it needs values, and the case is too large to make them: {first}"
            ) from first
        return _attempt(item, case, architecture, "cpu")


def _attempt(item: Implementation, case: Case, architecture: Architecture, real: str) -> list[Call]:
    calls: list[Call] = []
    inputs = _inputs(case, real)

    def call() -> None:
        with (
            record.recording(calls.append),
            pretend.operators_run(real),
            pretend.tensors_on_cuda(real),
        ):
            _run(item, case, inputs)

    with pretend.cuda(architecture):
        guarded(call, "cpu")
    return calls


def _inputs(case: Case, real: str) -> Inputs:
    op = ops.get(case.op)
    arguments = (ops.sizes(case), case.dtype, case.distribution, case.seed, "cpu")
    if real == "cpu":
        return op.draw(*arguments)
    with FakeTensorMode(allow_non_fake_inputs=True):
        drawn = op.draw(*arguments)
    tensors = {
        name: torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device=real)
        for name, t in drawn.tensors.items()
    }
    return Inputs(tensors, drawn.options)


def _run(item: Implementation, case: Case, inputs: Inputs) -> None:
    tensors = dict(inputs.tensors)
    if case.direction is Direction.FORWARD:
        item.call(*tensors.values(), **inputs.options)
        return
    wanted = [tensors[name].requires_grad_() for name in ops.get(case.op).differentiable]
    out = item.call(*tensors.values(), **inputs.options)
    if not isinstance(out, torch.Tensor) or not out.requires_grad:
        raise Failure(Status.UNSUPPORTED, "its output has no grad_fn: it has no backward")
    # torch.autograd.grad would leave the mode that pretends before it runs the backward.
    torch.autograd.Variable._execution_engine.run_backward(
        (out,),
        (torch.empty_like(out),),
        False,
        False,
        tuple(wanted),
        allow_unreachable=True,
        accumulate_grad=False,
    )
