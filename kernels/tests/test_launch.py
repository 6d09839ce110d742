"""Launches: what tells one kind of launch from another, and calls that are replayed."""

import contextlib
import dataclasses
from unittest import mock

import cases
import pytest
import torch
import triton
from cases import DEVICE
from conformance import CALLS
from nsa_kernels.jit.compat import tl
from nsa_kernels.launch import replay
from nsa_kernels.launch.device import on_its_device
from nsa_kernels.launch.replay import replayed
from triton.runtime.errors import OutOfResources


@triton.jit
def weighted_kernel(out_ptr, x_ptr, y_ptr, n, weight, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n)
    y = tl.load(y_ptr + at, mask=at < n)
    tl.store(out_ptr + at, x + weight * y, mask=at < n)


def weigh(out, x, y, weight):
    weighted_kernel[(-(-x.numel() // 16),)](out, x, y, x.numel(), weight, BLOCK=16)


def chain(x, y, weight):
    """Return two results, the first a part of its allocation, and use memory between them."""
    once = torch.empty((2, *x.shape), dtype=x.dtype, device=x.device)
    twice, result = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for _ in range(2))
    weigh(once[1], x, y, weight)
    weigh(twice, once[1], y, weight)
    weigh(result, twice, x, weight)
    return once[1], result


def want(x, y, weight):
    once = x + weight * y
    return once, (once + weight * y) + weight * x


def randn(*size):
    return torch.randn(size).to(DEVICE)


def programs(of):
    return [p for p in of.programs.values() if isinstance(p, replay.Program)]


def check(call, *args):
    for a, b in zip(call(*args), want(*args), strict=True):
        torch.testing.assert_close(a, b)


def test_a_replayed_call_works_on_the_values_of_its_own_arguments():
    call = replayed(chain)
    for _ in range(4):
        check(call, randn(5, 7), randn(5, 7), 2.0)
    assert len(programs(call)) == 1
    kept = call(randn(5, 7), randn(5, 7), 2.0)
    before = [x.clone() for x in kept]
    call(randn(5, 7), randn(5, 7), 2.0)
    assert all(torch.equal(a, b) for a, b in zip(kept, before, strict=True))


def test_a_replayed_function_inside_another_one_is_recorded_with_it():
    inner = replayed(chain)
    outer = replayed(lambda x, y, weight: inner(x, y, weight)[::-1])
    for _ in range(4):
        check(inner, randn(6), randn(6), 2.0)
    for _ in range(4):
        x, y = randn(6), randn(6)
        for a, b in zip(outer(x, y, 2.0), want(x, y, 2.0)[::-1], strict=True):
            torch.testing.assert_close(a, b)
    (program,) = programs(outer)
    assert len(program.launches) == 3


def test_what_is_on_no_device_is_not_taken_for_what_is_on_the_cpu():
    call = replayed(chain)
    for _ in range(3):
        check(call, randn(5, 7), randn(5, 7), 2.0)
    for key in call.programs:
        call.programs[key] = mock.Mock(side_effect=AssertionError("it was replayed"))
    with pytest.raises(Exception) as caught:
        call(randn(5, 7).to("meta"), randn(5, 7).to("meta"), 2.0)
    assert "it was replayed" not in str(caught.value)


@pytest.mark.parametrize("record_on_one", [True, False])
def test_arguments_of_one_storage_are_told_apart(record_on_one):
    call = replayed(chain)
    both = randn(2, 32)
    x = randn(32)
    recorded = (x, x) if record_on_one else (both[0], both[1])
    for _ in range(2):
        check(call, *recorded, 3.0)
    assert len(programs(call)) == 1
    check(call, randn(32), randn(32), 3.0)
    check(call, both[1], both[0], 3.0)
    check(call, x, x, 3.0)


def test_other_strides_alignments_and_numbers_are_other_programs():
    call = replayed(chain)
    room = randn(80)
    for x, y in ((randn(16), randn(16)), (room[1:17], randn(16)), (randn(16), room[1:17])):
        for weight in (2, 2.0):
            for _ in range(3):
                check(call, x, y, weight)
    assert len(programs(call)) == 6


def test_what_torch_does_on_the_way_is_not_replayed():
    def copies(x, weight):
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        weigh(out, x, x.contiguous(), weight)
        return out

    def fills(x, weight):
        return torch.empty(x.shape, dtype=x.dtype, device=x.device).zero_()

    def fills_a_part(x, weight):
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        weigh(out, x, x, weight)
        out.view(-1)[:3].zero_()
        return out

    def gives_its_own(x, weight):
        return x * weight

    def gives_an_argument(x, weight):
        return x

    for body in (copies, fills, fills_a_part, gives_its_own, gives_an_argument):
        call = replayed(body)
        with torch.inference_mode(body is fills):
            x = randn(4, 8)[:, :4]
            for _ in range(4):
                assert torch.equal(call(x, 2.0), body(x, 2.0))
        assert not programs(call), body.__name__


def negative(x):
    """Return a view that equals x but is stored as its negative."""
    view = torch._neg_view(-x)
    assert view.is_neg() and torch.equal(view, x)
    return view


def test_a_replayed_call_reads_a_negative_view_as_what_it_stands_for():
    call = replayed(chain)
    x, y = randn(6, 8), randn(6, 8)
    for _ in range(3):
        check(call, x, y, 2.0)
    for views in ((negative(x), y), (x, negative(y)), (negative(x), negative(y))):
        for _ in range(3):
            check(call, *views, 2.0)


@pytest.mark.parametrize("call", ["sliding_window", "block_selection_attention", "nsa_attention"])
def test_a_negative_gradient_is_read_as_what_it_stands_for(call):
    case = cases.make(call, t=5)
    leaves = [x.requires_grad_() for x in case.tensors.values() if x.is_floating_point()]
    out = cases.results(case.call(**case.tensors))[0]
    weight = torch.randn_like(out)
    for _ in range(3):  # launched, recorded and replayed
        got = torch.autograd.grad(out, leaves, negative(weight), retain_graph=True)
        want = torch.autograd.grad(out, leaves, weight, retain_graph=True)
        assert all(torch.equal(a, b) for a, b in zip(got, want, strict=True))


def test_a_call_that_wants_a_gradient_is_never_replayed():
    call = replayed(chain)
    x, y = randn(16), randn(16)
    for _ in range(3):
        check(call, x, y, 2.0)
    seen = []

    def watched(x):
        seen.append(x.requires_grad)
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        weigh(out, x, x, 1.0)
        return out

    call = replayed(watched)
    leaf = x.clone().requires_grad_()
    for _ in range(3):
        call(leaf)
    assert seen == [True] * 3
    with torch.no_grad():
        for _ in range(4):
            call(leaf)
    assert len(seen) == 5


def test_an_error_is_raised_by_every_call():
    def refuses(x):
        raise ValueError("no")

    call = replayed(refuses)
    for _ in range(4):
        with pytest.raises(ValueError, match="no"):
            call(randn(4))


@triton.jit
def undefined_kernel(x_ptr):
    tl.store(x_ptr, there_is_no_such_name)  # noqa: F821


@pytest.mark.parametrize("decorate", [on_its_device, replayed])
@pytest.mark.parametrize("failure", ["compiler", "launcher"])
def test_an_error_of_triton_is_the_cause_of_one_of_ours(decorate, failure):
    def launches(x):
        if failure == "launcher":
            raise OutOfResources(300_000, 232_448, "shared memory")
        undefined_kernel[(1,)](x)
        return x

    for _ in range(3):
        with pytest.raises(RuntimeError, match=launches.__module__) as caught:
            decorate(launches)(randn(4))
        assert type(caught.value) is RuntimeError and caught.value.__cause__ is not None


def test_an_error_that_is_not_of_triton_stays_what_it_is():
    def allocates(x):
        raise torch.cuda.OutOfMemoryError("300 GiB")

    with pytest.raises(torch.cuda.OutOfMemoryError, match="300 GiB"):
        on_its_device(allocates)(randn(4))


def test_a_replay_in_inference_mode_gives_what_such_a_call_gives():
    call = replayed(chain)
    with torch.inference_mode():
        for _ in range(4):
            results = call(randn(16), randn(16), 2.0)
            check(call, randn(16), randn(16), 2.0)
        assert results[1].is_inference() and programs(call)


def test_what_is_not_needed_at_the_same_time_shares_memory():
    def long(x, y, weight):
        for _ in range(5):
            out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
            weigh(out, x, y, weight)
            x = out
        return x

    call = replayed(long)
    for _ in range(4):
        x, y = randn(1000), randn(1000)
        torch.testing.assert_close(call(x, y, 0.5), long(x, y, 0.5))
    (program,) = programs(call)
    assert len(program.launches) == 5 and program.bytes == 2 * 4096


@contextlib.contextmanager
def counted():
    """Yield a mock that counts replayed calls."""
    launches = mock.Mock(wraps=replay.Program.__call__)
    with mock.patch.object(replay.Program, "__call__", lambda *args: launches(*args)):
        yield launches


def test_a_call_whose_kernel_has_a_hook_is_not_replayed():
    call = replayed(chain)
    x, y = randn(4, 5), randn(4, 5)
    for _ in range(3):
        check(call, x, y, 2.0)
    seen = []
    weighted_kernel.add_pre_run_hook(lambda *args, **kwargs: seen.append(args))
    try:
        with counted() as launches:
            check(call, x, y, 2.0)
    finally:
        weighted_kernel.pre_run_hooks.clear()
    assert launches.call_count == 0 and len(seen) == 3
    with counted() as launches:
        check(call, x, y, 2.0)
    assert launches.call_count == 1 and len(seen) == 3


NOT_REPLAYED = {
    "packed_sdpa": "is torch's operations alone",
    "NSAttention": "projects by torch",
    "NSAttention with a cache": "projects by torch",
    "plan_blocks": "has a plan, and its call",
}


@pytest.mark.parametrize("name", [call for call in CALLS if call not in NOT_REPLAYED])
def test_every_public_call_is_replayed_as_one(name):
    case = cases.make(name, b=2)
    for turn in range(4):
        tensors = {
            key: (x.roll(turn) if x.is_floating_point() else x) for key, x in case.tensors.items()
        }
        with torch.no_grad(), counted() as launches:
            if name == "decode_scores":  # the case's lse does not belong to rolled keys
                case.call(**tensors)
            else:
                cases.agree(name, dataclasses.replace(case, tensors=tensors))
    assert launches.call_count == (2 if name == "compressed_attention_with_scores" else 1)
