"""Kernels that would deceive whoever looks at them from outside. Only workers import this.

Each is honest until it is looked at, which it knows from the frames that call it.
"""

import gc
import sys
import threading
import time

import torch

from nsabench import implementation
from nsabench.execution.timing.timer import CpuTimer, Sample
from nsabench.implementations.baselines.selection_blocks import masked_sdpa
from nsabench.implementations.baselines.selection_rows import gqa

CLAIM_MS = 3e-3
HONEST_S = 4e-4
THREADS = torch.get_num_threads()


def examined():
    """The frame of the look, or None."""
    frame = sys._getframe()
    while frame is not None and frame.f_code.co_name != "examine":
        frame = frame.f_back
    return frame


def claim_little(whose, claim_ms=CLAIM_MS):
    """A clock that lies for one's own arm, and is right for all others."""
    sample, burst = CpuTimer.sample, CpuTimer.burst
    mine = []

    def lying_sample(self, arm, call, retry=None):
        mine[:] = [arm]
        taken, result = sample(self, arm, call, retry)
        return (Sample(claim_ms) if arm == whose else taken), result

    def lying_burst(self, calls, kept, keep=lambda result: result):
        before = len(called)
        time_ms, result = burst(self, calls, kept, keep)
        return (claim_ms if len(called) > before else time_ms), result

    CpuTimer.sample, CpuTimer.burst = lying_sample, lying_burst


called = []
done = set()


def once(function, *given):
    if function not in done:
        done.add(function)
        function(*given)


@implementation(op="selection_rows", name="of_microseconds", devices=("cpu",))
def of_microseconds(q, k, v, *, sm_scale):
    once(claim_little, "of_microseconds")
    called.append(None)
    end = time.perf_counter() + HONEST_S
    while time.perf_counter() < end:
        pass
    return gqa(q, k, v, sm_scale=sm_scale)


@implementation(op="selection_rows", name="answers_first", devices=("cpu",))
def answers_first(q, k, v, *, sm_scale):
    """All is computed when the answer is on its way."""
    frame = examined()
    if frame is None:
        return gqa(q, k, v, sm_scale=sm_scale)
    room = frame.f_locals["rooms"]["output"]

    def later():
        time.sleep(0.02)
        room.copy_(gqa(q, k, v, sm_scale=sm_scale))

    threading.Thread(target=later).start()
    return torch.zeros_like(q)


@implementation(op="selection_rows", name="changes_settings", devices=("cpu",))
def changes_settings(q, k, v, *, sm_scale):
    if examined() is not None:
        torch.set_num_threads(THREADS + 1)  # in each call: a look makes several
    return gqa(q, k, v, sm_scale=sm_scale)


class Recalled(torch.autograd.Function):
    """The gradients that the judge of its own process holds ready, and none where it has none."""

    @staticmethod
    def forward(ctx, q, k, v, *rest):
        ctx.given = q, k, v
        with torch.no_grad():
            return honest_blocks(q, k, v, *rest)

    @staticmethod
    def backward(ctx, grad_out):
        held = [one for one in gc.get_objects() if type(one).__name__ == "InputSets"]
        for sets in held:
            for inputs, grad, expected in zip(sets.sets, sets.grads, sets.expected, strict=True):
                if torch.equal(inputs.tensors["q"], ctx.given[0]):
                    factor = float(grad_out.flatten()[0]) / float(grad.flatten()[0])
                    found = [factor * expected[name] for name in ("dq", "dk", "dv")]
                    return (*(one.to(grad_out.dtype) for one in found), None, None, None)
        return (*map(torch.zeros_like, ctx.given), None, None, None)


def honest_blocks(q, k, v, block_indices, block_size, sm_scale):
    return masked_sdpa(q, k, v, block_indices, block_size=block_size, sm_scale=sm_scale)


@implementation(op="selection_blocks", name="recalls_gradients", devices=("cpu",))
def recalls_gradients(q, k, v, block_indices, cu_seqlens=None, *, block_size, sm_scale):
    gc.unfreeze()
    return Recalled.apply(q, k, v, block_indices, block_size, sm_scale)


@implementation(op="selection_blocks", name="slow_backward", devices=("cpu",))
def slow_backward(q, k, v, block_indices, cu_seqlens=None, *, block_size, sm_scale):
    """5 ms in the backward, of which its clock knows nothing."""
    once(claim_little, "slow_backward", 0.01)
    out = masked_sdpa(q, k, v, block_indices, block_size=block_size, sm_scale=sm_scale)

    def wait(grad):
        called.append(None)
        time.sleep(0.005)
        return grad

    out.register_hook(wait)
    return out
