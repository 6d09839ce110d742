"""Every public call under every dtype and condition gives what its formula gives in float64, or is
refused with the sentence of ``conformance.py``."""

import traceback

import conformance
import nsa_kernels
import pytest
import torch
from cases import (
    DEVICE,
    captured,
    check,
    check_gradients,
    doubled,
    gradients,
    make,
    packed,
    results,
)
from torch.utils.checkpoint import checkpoint

WITHOUT_GRADIENTS = (*conformance.NO_BACKWARD, "nsa_attention with fewer queries")


def walk(name, dtype, condition):
    """Make a call under a dtype and a condition, and check its result or its refusal."""
    entries = {"B > 1": 2, "expanded": 2, "zero-size": 0}.get(condition, 1)
    case = make(name, b=entries, t=1 if condition == "T = 1" else 4, dtype=dtype)
    if condition == "packed" and name != "selection_varlen":
        case = packed(name, (2, 2), dtype=dtype)
    tensors, call = dict(case.tensors), case.call
    if condition == "strided":
        for key, x in tensors.items():
            if key != "cu_seqlens":
                tensors[key] = torch.stack([x, x], -1)[..., 0]
    if condition == "expanded":
        for key in case.keys:
            x = tensors[key]
            tensors[key] = x[:1].expand(x.shape)
    if condition == "negative view":
        # Only one tensor: the signs of two could cancel.
        first = case.leaves[0]
        tensors[first] = torch._neg_view(-tensors[first])
    wanted = condition in ("zero-size", "no_grad", *conformance.WANT_GRADIENTS)
    wanted = wanted and not (condition == "zero-size" and name in WITHOUT_GRADIENTS)
    leaves = case.leaves[:1] if condition == "Parameter" else case.leaves
    if wanted:
        of = torch.nn.Parameter if condition == "Parameter" else torch.Tensor.requires_grad_
        tensors |= {key: of(tensors[key].detach()) for key in leaves}
    exact = doubled(tensors)
    if wanted:
        for key in leaves:
            exact[key].requires_grad_()
    again = condition == "second derivative"

    refused = conformance.refusal(name, str(dtype).removeprefix("torch."), condition)

    def run():
        if condition == "no_grad":
            with torch.no_grad():
                return results(call(**tensors))
        if condition == "inference_mode":
            with torch.inference_mode():
                return tuple(x.clone() for x in results(call(**tensors)))
        if condition == "autocast":
            with torch.autocast(DEVICE, torch.bfloat16):
                return results(call(**tensors))
        if condition == "checkpoint":
            return results(checkpoint(call, use_reentrant=False, **tensors))
        if condition == "compile":
            torch._dynamo.reset()
            # A cache, which is a Python object, and an exception break the graph.
            whole = refused is None and name != "NSAttention with a cache"
            return results(torch.compile(call, fullgraph=whole, backend="aot_eager")(**tensors))
        if condition == "CUDA graph":
            return replayed(call, tensors)
        if condition == "torch.func":
            key = next(iter(tensors))

            def loss(x):
                return results(call(**{**tensors, key: x}))[0].sum()

            return results(torch.func.grad(loss)(tensors[key]))
        return results(call(**tensors))

    def differentiated(of):
        return gradients(of, [tensors[key] for key in leaves], again)

    if refused is not None:
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            differentiated(run())
        # torch 2.11 leaves a checkpoint's hooks in place while a frame holds its generator.
        traceback.clear_frames(caught.tb)
        assert type(caught.value).__name__ == refused.error, caught.value
        assert refused.matches(name, str(caught.value)), caught.value
        return
    got, want = run(), results(case.formula(**exact))
    if name.startswith("NSAttention") and condition == "autocast":
        dtype = torch.bfloat16  # the dtype of its projections, as in any layer
    check(name, got, want, dtype)
    if wanted and condition != "no_grad":
        found = differentiated(got)
        if name == "select_blocks":
            assert found == ()
            return
        check_gradients(found, gradients(want, [exact[key] for key in leaves], again), dtype)


def replayed(call, tensors):
    """Return the results of a graph's replay. The graph is captured on zeros."""
    values = {key: x.clone() for key, x in tensors.items()}
    for x in tensors.values():
        if x.is_floating_point():
            x.zero_()
    graph, got = captured(lambda: call(**tensors))
    for key, x in tensors.items():
        x.copy_(values[key])
    graph.replay()
    torch.cuda.synchronize()
    return got


def here():
    """Return all cells on a GPU; in the interpreter, float32 without CUDA graphs, and plain calls.

    Compiling a whole layer takes seconds: only test-all does it.
    """
    if DEVICE == "cuda":
        return list(conformance.cells())
    return [
        pytest.param(*cell, marks=pytest.mark.full) if call.startswith("NSA") and compiles else cell
        for cell in conformance.cells()
        for call, dtype, condition, compiles in [(*cell, cell[2] == "compile")]
        if condition != "CUDA graph" and (dtype == "float32" or condition == "plain")
    ]


@pytest.mark.parametrize(("call", "dtype", "condition"), here())
def test_it_works_or_says_why_not(call, dtype, condition):
    walk(call, getattr(torch, dtype), condition)


def test_every_public_function_is_in_the_table():
    settings = {"chosen_config", "default_policy", "reset_routing_report", "routing_report"}
    functions = {name for name in nsa_kernels.__all__ if name.islower()}
    assert functions - settings == {
        name for name in conformance.CALLS if name.islower() and name.isidentifier()
    }


def test_no_refusal_is_one_of_no_cell():
    used = {conformance.refusal(*cell) for cell in conformance.cells()} - {None}
    assert used == set(conformance.REFUSALS)
