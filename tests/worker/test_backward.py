"""The direction backward: what is timed, what is checked, and what is caught, on the CPU."""

import time
from random import Random

import pytest
import torch

from nsabench import ops
from nsabench.failure import Failure
from nsabench.implementations.baselines.selection_ranges import masked_sdpa
from nsabench.model.vocabulary import Direction, Status
from nsabench.worker.timing.timer import CpuTimer
from tests.checking import a_case, arm_of, observations, registered, rounds, sets_of

pytestmark = pytest.mark.usefixtures("one_thread")
OP = "selection_ranges"
SHAPE = {"B": 2, "S": 4, "G": 2, "H": 4, "D": 32, "Dv": 16, "S_kv": 96, "n_spans": 3, "L": 40}
FORWARD_S = 0.05


def make_case(dtype="float16", distribution="disjoint", **timing):
    fields = {"dtype": dtype, "direction": Direction.BACKWARD, "distribution": distribution}
    count = timing.pop("rounds", 12)
    return a_case(OP, SHAPE, **fields, timing=rounds(count, warmup_s=0.001, **timing))


def item(call):
    return registered(OP, "mine", call)


def my_arm(call, case=None, seed=0):
    case = case or make_case()
    return arm_of(item(call), case, sets_of(case), Random(seed))


def outcome_of(call, case=None):
    return observations(case or make_case(), [item(call)])[0]


def test_a_gradient_that_is_missing_is_named():
    def detached(q, k, *rest, **options):
        return masked_sdpa(q, k.detach(), *rest, **options)

    assert "gives no dk" in outcome_of(detached).reason


def test_an_implementation_without_a_backward_is_unsupported():
    found = outcome_of(torch.no_grad()(masked_sdpa))
    assert found.status is Status.UNSUPPORTED
    assert "no backward" in found.reason


def test_the_forward_is_not_in_the_time():
    def slow(*tensors, **options):
        time.sleep(FORWARD_S)
        return masked_sdpa(*tensors, **options)

    found = outcome_of(slow, make_case(rounds=4))
    assert found.status is Status.OK, found.reason
    assert min(found.samples.time_ms) < FORWARD_S * 1e3 / 2


class Made(torch.autograd.Function):
    """Returns the output of `make()`, and from `backward` the gradients of the tensors."""

    @staticmethod
    def forward(ctx, make, backward, *tensors):
        ctx.made = backward
        return make()

    @staticmethod
    def backward(ctx, grad_out):
        return (None, None, *ctx.made(grad_out))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        (lambda grad_out, q: grad_out.mul_(2), "changed the gradient it was given"),
        (lambda grad_out, q: q.data.mul_(2), "changed its input q"),
    ],
)
def test_what_a_backward_reads_must_stay_as_it_is(changes, reason):
    def call(q, *rest, **options):
        out = masked_sdpa(q, *rest, **options)

        def hook(grad_out):
            changes(grad_out, q)

        out.register_hook(hook)
        return out

    with pytest.raises(Failure, match=reason):
        my_arm(call).check()


def test_a_gradient_made_in_the_forward_is_wrong():
    """The forward knows all but the gradient of the output, and guesses an earlier one."""
    seen = []

    def guess(q, k, v, ranges, **options):
        out = masked_sdpa(q, k, v, ranges, **options)
        if not seen:
            out.register_hook(lambda grad_out: seen.append(grad_out.clone()))
            return out
        grads = torch.autograd.grad(out, (q, k, v), seen[-1])
        return Made.apply(out.clone, lambda grad_out: grads, q, k, v)

    arm = my_arm(guess)
    with pytest.raises(Failure, match="mean absolute error"):
        arm.check()
    assert seen  # the first call was right


def test_a_gradient_that_is_the_one_it_was_given_is_wrong():
    case = make_case().model_copy(update={"shape": {**SHAPE, "Dv": SHAPE["D"]}})

    def alias(q, *rest, **options):
        out = masked_sdpa(q, *rest, **options)
        return Made.apply(out.clone, lambda grad_out: (grad_out,), q)

    with pytest.raises(Failure, match="dq shares memory with its input grad_out"):
        my_arm(alias, case).check()


def test_a_backward_is_not_captured():
    with pytest.raises(Failure, match="CUDA graphs") as caught:
        my_arm(masked_sdpa).caller.capture()
    assert caught.value.status is Status.UNSUPPORTED


class TwiceTimer(CpuTimer):
    """Samples twice and keeps the second sample, as after a launch gap that was not hidden."""

    def sample(self, arm, call, again=None):
        super().sample(arm, call)
        return super().sample(arm, call if again is None else again())


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (torch.zeros_like, "of output against the float64 oracle"),
        (lambda out: out.fill_(torch.nan), "output elements are NaN"),
    ],
)
def test_the_output_of_a_backward_is_held_to_the_oracle(change, reason):
    """The gradients of this kernel are right."""

    def spoiled(*tensors, **options):
        out = masked_sdpa(*tensors, **options)
        return Made.apply(lambda: change(out.clone()), lambda grad_out: (grad_out,), out)

    found = outcome_of(spoiled)
    assert found.status is Status.WRONG
    assert reason in found.reason


def test_an_output_of_a_backward_lives_on():
    """Two layers of a network that share a buffer would spoil each other's output."""
    buffers = []

    def in_one_buffer(*tensors, **options):
        out = masked_sdpa(*tensors, **options)

        def keep():
            buffers.append(out.clone())
            return buffers[0].copy_(out).view_as(out)

        return Made.apply(keep, lambda grad_out: (grad_out,), out)

    found = outcome_of(in_one_buffer)
    assert found.status is Status.WRONG
    assert found.reason == "a later call overwrote what an earlier one had returned"


@pytest.mark.parametrize("direction", list(Direction))
def test_a_sample_can_be_taken_again(direction):
    case = make_case().model_copy(update={"direction": direction})
    [found] = observations(case, [item(masked_sdpa)], timer=TwiceTimer())
    assert found.status is Status.OK, found.reason


def test_gradients_of_large_sums_are_held_to_the_format_and_small_ones_to_the_tolerance(
    monkeypatch,
):
    """bfloat16 resolves 2^-8 of a value. With gradients of about 30, an honest kernel has an error
    above 1e-3, but a kernel with an error of a tenth is wrong."""
    case, op = make_case("bfloat16"), ops.get(OP)
    drawn = op.draw_grad
    monkeypatch.setattr(type(op), "draw_grad", lambda _, *given: drawn(*given) * 1024)
    sets = sets_of(case)
    assert op.gradients(sets.sets[0], sets.grads[0])["q"].abs().max() > 30
    arm_of(item(masked_sdpa), case, sets, Random(0)).check()

    def off(q, *rest, **options):
        return masked_sdpa(1.1 * q - 0.1 * q.detach(), *rest, **options)

    with pytest.raises(Failure, match="of dq"):
        arm_of(item(off), case, sets, Random(0)).check()


def test_work_of_a_backward_is_the_forward_and_the_gradients():
    case = make_case()
    forward = case.model_copy(update={"direction": Direction.FORWARD})
    sizes = ops.sizes(case)
    gradients = 2 * (2 * 4 * 2 * 4 * 32 + 2 * 2 * 96 * (32 + 16))
    assert ops.work(case).bytes_min == ops.work(forward).bytes_min + gradients
    # dv and dp have the width of v, dq and dk the width of q. Each product is computed once.
    selected = ops.work(forward).flops // (2 * (32 + 16))
    assert ops.work(case).flops == 2 * selected * (16 + 16 + 32 + 32)
    assert ops.get(OP).differentiable_elements(sizes) * 2 == gradients
    assert case.id != forward.id
