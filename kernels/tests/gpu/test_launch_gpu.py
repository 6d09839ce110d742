"""Replayed calls equal Triton's own launches to the bit, at random shapes, strides and
alignments."""

import importlib
import math
import pkgutil
import random
from unittest import mock

import conformance
import nsa_kernels
import pytest
import torch
from cases import MAKERS, gradients, make, packed, results
from nsa_kernels.launch import replay
from triton.runtime.jit import JITFunction


class Draw:
    """Draws calls with tensors of any strides and alignments. A seed draws the same calls."""

    def __init__(self, seed):
        torch.manual_seed(seed)
        self._random = random.Random(seed)
        self.one_of = lambda *values: self._random.choice(values)

    def elsewhere(self, x, free):
        """Return a copy of x in a tensor that may be larger from axis ``free``. The copy may begin
        a few elements past an aligned address."""
        ahead = self.one_of(0, 0, 1, 3, 8)
        size = [n + (self.one_of(0, 0, 1, 8) if i >= free else 0) for i, n in enumerate(x.shape)]
        room = x.new_zeros(math.prod(size) + ahead)[ahead:].view(size)
        return room[tuple(slice(n) for n in x.shape)].copy_(x)

    def sizes(self, name):
        one_of = self.one_of
        h = one_of(1, 2)
        sizes = {"b": one_of(1, 2), "h": h, "hq": h * one_of(1, 4, 16)}
        sizes |= {key: one_of(16, 32, 40, 64, 128) for key in ("d", "dv")}
        sizes |= {"dtype": one_of(torch.float16, torch.bfloat16, torch.float32), "window": 100}
        sizes |= {"block": 32, "stride": 16, "block_size": one_of(16, 32, 64), "n_selected": 16}
        if name.startswith("selection"):
            return sizes | {
                "t": one_of(1, 5, 64),
                "n": one_of(0, 1, 33, 130, 700, 5000),
                "spans": one_of(1, 3, 16, 70),
            }
        if name.startswith("decode_step"):
            sizes |= {"n_selected": one_of(16, 70), "hq": h * one_of(1, 4, 40), "block_size": 64}
        if name.startswith("nsa") and sizes["dtype"] != torch.float32 and one_of(0, 0, 1):
            sizes["d"], sizes["dv"] = one_of((192, 128), (256, 256), (144, 64))
        return sizes | {"t": one_of(1, 40, 100, 333, 1024, 2000), "blocks": one_of(1, 4, 16)}

    def case(self, name):
        sizes = self.sizes(name)
        if name in ("select_blocks", "gated_sum"):
            sizes["dtype"] = torch.float32
        if name in PACKED and self.one_of(True, False) and sizes["t"] > 8:
            third = sizes["t"] // 3
            return packed(name, (third, sizes.pop("t") - third), **{**sizes, "b": 1})
        return make(name, **sizes)

    def call(self, name):
        """Return a function that makes the call, or at random also its backward."""
        case = self.case(name)
        # Batches and tokens of blocks, and batches and heads of a cache, must have no gaps in
        # memory.
        free = 3 if name.startswith("decode") else 2 if "block" in name else 0
        tensors = {
            key: x if key.startswith("cu_") else self.elsewhere(x, free)
            for key, x in case.tensors.items()
        }
        if name in conformance.NO_BACKWARD or "fewer" in name or self.one_of(True, False):
            return lambda: case.call(**tensors)
        leaves = [tensors[key].requires_grad_() for key in case.leaves]

        def both():
            found = results(case.call(**tensors))
            return *(x.detach() for x in found), *gradients(found, leaves)

        return both


PACKED = ("block_selection_attention", "sliding_window", "compressed_attention", "nsa_attention")
FAMILIES = [name for name in MAKERS if not name.startswith("NSAttention") and name != "packed_sdpa"]


def as_triton(call):
    """Return the result of the call if Triton itself makes every launch."""
    with mock.patch.object(replay, "undisturbed", lambda: False):
        return call()


def same(got, want):
    got = got if isinstance(got, tuple) else (got,)
    want = want if isinstance(want, tuple) else (want,)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("family", FAMILIES)
def test_launches_give_what_tritons_own_give(family, seed):
    for turn in range(4):
        # Turns 0 to 2 have equal sizes at different addresses. The last turn has other sizes.
        call = Draw(seed if turn < 3 else seed + 1000).call(family)
        want = as_triton(call)
        for _ in range(1 + turn):
            same(call(), want)


def kernels():
    """Return the names of the Triton kernels. Hopper kernels have their own tests and cannot be
    imported everywhere."""
    found = set()
    for module in pkgutil.walk_packages(nsa_kernels.__path__, "nsa_kernels."):
        if any(x in module.name for x in ("integrations", ".cuda", ".kernels.hopper")):
            continue
        for name, x in vars(importlib.import_module(module.name)).items():
            if isinstance(x, JITFunction) and name.endswith("_kernel"):
                found.add(f"{x.__module__}.{name}")
    return found


def test_every_kernel_is_replayed():
    assert replay.ENABLED and replay.undisturbed()
    found = set()
    launch = replay.Program.launch

    def noted(program, values):
        found.update(f"{x.kernel.__module__}.{x.kernel.__name__}" for x in program.launches)
        launch(program, values)

    with mock.patch.object(replay.Program, "launch", noted):
        for family in FAMILIES:
            for seed in range(16):
                call = Draw(seed).call(family)
                for _ in range(3):
                    call()
    assert kernels() == {x for x in found if ".kernels.hopper" not in x}


def test_hooks_of_a_profiler_see_every_launch():
    from triton import knobs

    call = Draw(3).call("selection_rows")
    for _ in range(4):
        call()
    seen = []
    hook = seen.append
    chain = knobs.runtime.launch_enter_hook
    if hasattr(chain, "add"):
        chain.add(hook)
    else:
        knobs.runtime.launch_enter_hook = hook
    try:
        call()
    finally:
        if hasattr(chain, "remove"):
            chain.remove(hook)
        else:
            knobs.runtime.launch_enter_hook = chain
    count = len(seen)
    assert count >= 1
    call()
    assert len(seen) == count
