"""Calls candidates on a pretended GPU and collects their launches."""

from __future__ import annotations

from functools import partial

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from nsabench import ops
from nsabench.failure import Failure
from nsabench.model.case import Case
from nsabench.model.vocabulary import Direction, Status
from nsabench.ops import Inputs
from nsabench.preflight import pretend, record
from nsabench.preflight.architectures import Architecture
from nsabench.preflight.record import Call, Compiled
from nsabench.registry import Implementation, KernelVariant
from nsabench.worker.guard import guarded

SMALL_BYTES = 256 << 20  # the largest inputs that are made with values
THREADS_PER_WARP = 32


def variants(item: Implementation, architecture: Architecture) -> list[Call]:
    """Return what an implementation compiles for the architecture itself. Raises `Failure`."""
    compile_ahead = item.compile_ahead
    assert compile_ahead is not None
    return [
        Call(
            kernel=variant.kernel,
            origin=f"{item.source}|{variant.kernel}",
            constants=variant.constants,
            options=f"threads={variant.threads} dynamic_shared={variant.shared_bytes}",
            compile=partial(_compile, variant),
            compiler=variant.compiler,
        )
        for variant in guarded(lambda: compile_ahead(architecture.capability), "cpu")
    ]


def _compile(variant: KernelVariant) -> Compiled:
    cubin = variant.compile()
    if not isinstance(cubin, bytes) or not cubin.startswith(b"\x7fELF"):
        raise TypeError("its compile() returned no cubin (bytes of an ELF file)")
    warps = -(-variant.threads // THREADS_PER_WARP)
    return Compiled(cubin, variant.kernel, warps, variant.shared_bytes)


def launches(item: Implementation, case: Case, architecture: Architecture) -> list[Call]:
    """Return the launches of a call on the case. Raises `Failure` if the call fails.

    Tensors are on `meta` first; if the code reads values, small tensors on the CPU follow.
    """
    try:
        return _record_calls(item, case, architecture, "meta")
    except Failure as first:
        if first.status is Status.UNSUPPORTED:
            raise
        if ops.work(case).bytes_min > SMALL_BYTES:
            raise Failure(
                Status.SKIPPED, f"it needs values, and the case is too large to make them: {first}"
            ) from first
        return _record_calls(item, case, architecture, "cpu")


def _record_calls(
    item: Implementation, case: Case, architecture: Architecture, real: str
) -> list[Call]:
    """Collect the launches of a call on tensors on the device `real`, "meta" or "cpu"."""
    calls: list[Call] = []
    inputs = _make_inputs(case, real)

    def call() -> None:
        with (
            record.recording(calls.append),
            pretend.operators_run(real),
            pretend.TensorsOnCuda(real),
        ):
            _run(item, case, inputs)

    with pretend.cuda(architecture):
        guarded(call, "cpu")
    return calls


def _make_inputs(case: Case, real: str) -> Inputs:
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
    # torch.autograd.grad would leave the pretending mode before the backward runs.
    torch.autograd.Variable._execution_engine.run_backward(
        (out,),
        (torch.empty_like(out),),
        False,
        False,
        tuple(wanted),
        allow_unreachable=True,
        accumulate_grad=False,
    )
