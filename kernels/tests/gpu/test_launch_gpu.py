"""Every kernel by the launcher against Triton's own launch, to the bit: shapes, strides, alignment
and sizes drawn at random, called again and again on other values."""

from __future__ import annotations

import importlib
import pkgutil
import random
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

import nsa_kernels  # noqa: E402
from nsa_kernels.jit import direct  # noqa: E402
from nsa_kernels.launch import launcher, replay  # noqa: E402
from triton.runtime.jit import JITFunction  # noqa: E402

DTYPES = (torch.float16, torch.bfloat16, torch.float32)
Call = Callable[[], Any]


class Draw:
    """Sizes and tensors at random; the same ones of the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.dtype = self.one_of(*DTYPES)
        self.d, self.dv = self.one_of(16, 32, 40, 64, 128), self.one_of(16, 32, 40, 64, 128)

    def one_of(self, *values: Any) -> Any:
        return self._random.choice(values)

    def whole(self, least: int, most: int) -> int:
        return self._random.randint(least, most)

    def tensor(self, *size: int, free: int = 0, dtype: torch.dtype | None = None) -> torch.Tensor:
        """N(0, 1), perhaps a part of a larger tensor along the axes from ``free`` on, perhaps
        begun an element behind an aligned address."""
        ahead = self.one_of(0, 0, 1, 3, 8)
        larger = [n + (self.one_of(0, 0, 1, 8) if i >= free else 0) for i, n in enumerate(size)]
        count = 1
        for n in larger:
            count *= n
        room = torch.randn(count + ahead, device="cuda").to(dtype or self.dtype)[ahead:]
        return room.view(larger)[tuple(slice(n) for n in size)]

    def ints(self, *size: int, least: int, most: int) -> torch.Tensor:
        ahead = self.one_of(0, 0, 1)
        room = torch.randint(least, most + 1, (torch.Size(size).numel() + ahead,), device="cuda")
        return room.int()[ahead:].view(size)


def rows(of: Draw) -> Call:
    n, h = of.one_of(1, 2, 7, 300), of.one_of(1, 3, 8, 16, 70)
    length = of.one_of(0, 1, 16, 33, 64, 700, 5000)
    x = of.tensor(n, h, of.d), of.tensor(n, length, of.d), of.tensor(n, length, of.dv)
    call = of.one_of(nsa_kernels.selection_rows, nsa_kernels.selection_rows_per_head)
    return lambda: call(*x, sm_scale=of.d**-0.5)


def varlen(of: Draw) -> Call:
    n, total = of.one_of(1, 5, 64), of.one_of(1, 48, 999, 6000)
    inner = sorted(of.whole(0, total) for _ in range(n - 1))
    cu = torch.tensor([0, *inner, total], dtype=torch.int32, device="cuda")
    x = of.tensor(n, of.one_of(1, 8), of.d), of.tensor(total, of.d), of.tensor(total, of.dv)
    longest = of.one_of(None, total)
    return lambda: nsa_kernels.selection_varlen(*x, cu, max_seqlen=longest)


def ranges(of: Draw) -> Call:
    b, s, g, h = of.one_of(1, 2), of.one_of(1, 5, 64), of.one_of(1, 2), of.one_of(1, 4, 16)
    s_kv, n = of.one_of(1, 130, 4096), of.one_of(1, 3, 16, 70)
    x = of.tensor(b, s, g, h, of.d), of.tensor(b, g, s_kv, of.d), of.tensor(b, g, s_kv, of.dv)
    start = of.ints(b, s, g, n, 1, least=-3, most=s_kv)
    spans = torch.cat([start, start + of.ints(b, s, g, n, 1, least=-1, most=200)], -1)
    return differentiated(lambda q, k, v: nsa_kernels.selection_ranges(q, k, v, spans), of, x)


def band(of: Draw) -> Call:
    b, t, h = of.one_of(1, 2), of.one_of(1, 64, 333, 1024), of.one_of(1, 2)
    packed = of.one_of(True, False) and b == 1 and t > 8
    cu = torch.tensor([0, t // 3, t], dtype=torch.int32, device="cuda") if packed else None
    q = of.tensor(b, t, h * of.one_of(1, 4, 16), of.d)
    window = of.one_of(1, 16, 100, 5000)
    x = q, of.tensor(b, t, h, of.d), of.tensor(b, t, h, of.dv)
    return differentiated(
        lambda q, k, v: nsa_kernels.sliding_window(q, k, v, cu, window=window), of, x
    )


def compressed(of: Draw) -> Call:
    b, t, h = of.one_of(1, 2), of.one_of(32, 64, 500, 1024), of.one_of(1, 2)
    keys = (t - 32) // 16 + 1
    x = (
        of.tensor(b, t, h * of.one_of(1, 4, 16), of.d),
        of.tensor(b, keys, h, of.d),
        of.tensor(b, keys, h, of.dv),
    )
    call = of.one_of(nsa_kernels.compressed_attention, nsa_kernels.compressed_attention_with_scores)
    return differentiated(call, of, x)


def top_n(of: Draw) -> Call:
    b, t, h = of.one_of(1, 2), of.one_of(1, 64, 500), of.one_of(1, 2)
    scores = of.tensor(b, t, h, of.one_of(8, 17, 64), dtype=torch.float32)
    count = of.one_of(3, 8, 16)
    return lambda: nsa_kernels.select_blocks(scores, count)


def blocks(of: Draw) -> Call:
    b, h, s = of.one_of(1, 2), of.one_of(1, 2), of.one_of(1, 4, 16)
    t = of.one_of(1, 65, 512, 2000)
    group, size = of.one_of(1, 4, 16), of.one_of(16, 32, 64)
    packed = of.one_of(True, False) and b == 1 and t > 8
    cu = torch.tensor([0, t // 3, t], dtype=torch.int32, device="cuda") if packed else None
    # Batch and time follow one another in memory.
    q = of.tensor(b, t, h * group, of.d, free=2)
    x = q, of.tensor(b, t, h, of.d, free=2), of.tensor(b, t, h, of.dv, free=2)
    index = of.ints(b, t, h, s, least=-1, most=-(-t // size))

    def call(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Any:
        return nsa_kernels.block_selection_attention(
            q, k, v, index, block_size=size, cu_seqlens=cu, return_lse=True
        )

    return differentiated(call, of, x)


def decode(of: Draw) -> Call:
    b, h, s = of.one_of(1, 3), of.one_of(1, 4), of.one_of(1, 40, 700, 9000)
    keys = max(0, (s - 32) // 16 + 1)
    q = of.tensor(b, h * of.one_of(1, 4, 16), of.d)
    # A cache with room: heads and batches are one axis.
    k, v, k_cmp, v_cmp = (
        of.tensor(b, h, n + of.one_of(0, 5, 16), d, free=4)[:, :, :n]
        for n, d in ((s, of.d), (s, of.dv), (keys, of.d), (keys, of.dv))
    )
    gates = of.tensor(b, q.shape[1], 3)
    lse = of.tensor(b, q.shape[1], dtype=torch.float32)
    return of.one_of(
        lambda: nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates),
        lambda: nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates, n_selected=70),
        lambda: nsa_kernels.decode_window(q, k, v, window=512),
        lambda: nsa_kernels.decode_scores(q, k_cmp, lse, -(-s // 64)),
        lambda: nsa_kernels.gated_sum(q, q, q, gates),
    )


def lengths(of: Draw) -> Call:
    b, h, s = of.one_of(1, 3), of.one_of(1, 4), of.one_of(40, 700, 9000)
    keys = max(0, (s - 32) // 16 + 1)
    q = of.tensor(b, h * of.one_of(1, 4, 40), of.d)
    k, v, k_cmp, v_cmp = (
        of.tensor(b, h, n, d, free=4)
        for n, d in ((s, of.d), (s, of.dv), (keys, of.d), (keys, of.dv))
    )
    gates = of.tensor(b, q.shape[1], 3)
    lse = of.tensor(b, q.shape[1], dtype=torch.float32)
    held = of.ints(b, least=-1, most=s + 3)
    page = of.one_of(16, 64, 100)
    pool_k, pool_v = (of.tensor(20, h, page, d) for d in (of.d, of.dv))
    table = of.ints(b, -(-s // page), least=-1, most=20)
    return of.one_of(
        lambda: nsa_kernels.decode_step(q, pool_k, pool_v, k_cmp, v_cmp, gates, held, table),
        lambda: nsa_kernels.decode_window(q, pool_k, pool_v, held, table, window=512)[0],
        lambda: nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates, held),
        lambda: nsa_kernels.decode_step(q, k, v, k_cmp, v_cmp, gates, held, n_selected=70),
        lambda: nsa_kernels.decode_compressed(q, k_cmp, v_cmp, held)[0],
        lambda: nsa_kernels.decode_window(q, k, v, held, window=512)[0],
        lambda: nsa_kernels.decode_scores(q, k_cmp, lse, -(-s // 64), held),
    )


def whole(of: Draw) -> Call:
    b, t, h = of.one_of(1, 1, 2), of.one_of(1, 100, 700), of.one_of(1, 2)
    hq = h * of.one_of(1, 4, 16)
    packed = of.one_of(True, False) and b == 1 and t > 8
    cu = torch.tensor([0, t // 3, t], dtype=torch.int32, device="cuda") if packed else None
    d, dv = of.d, of.dv
    if of.one_of(False, False, True) and of.dtype != torch.float32:
        d, dv = of.one_of((192, 128), (256, 256), (144, 64))
    x = of.tensor(b, t, hq, d), of.tensor(b, t, h, d), of.tensor(b, t, h, dv)
    gates = of.tensor(b, t, hq, 3)
    return differentiated(
        lambda q, k, v: nsa_kernels.nsa_attention(q, k, v, gates, cu_seqlens=cu), of, x
    )


def behind(of: Draw) -> Call:
    t, h = of.one_of(100, 700), of.one_of(1, 2)
    count = of.one_of(1, 33, 90)
    hq = h * of.one_of(1, 4, 16)
    packed = of.one_of(True, False)
    cu = torch.tensor([0, count // 3, count], dtype=torch.int32, device="cuda") if packed else None
    cu_k = torch.tensor([0, t // 2, t], dtype=torch.int32, device="cuda") if packed else None
    x = of.tensor(1, count, hq, of.d), of.tensor(1, t, h, of.d), of.tensor(1, t, h, of.dv)
    gates = of.tensor(1, count, hq, 3)
    return lambda: nsa_kernels.nsa_attention(*x, gates, cu_seqlens=cu, cu_seqlens_k=cu_k)


def differentiated(call: Callable[..., Any], of: Draw, tensors: tuple[torch.Tensor, ...]) -> Call:
    """The call, or its results and gradients."""
    if of.one_of(True, False):
        return lambda: call(*tensors)
    leaves = [x.detach().requires_grad_() for x in tensors]

    def both() -> tuple[torch.Tensor, ...]:
        out = call(*leaves)
        results = out if isinstance(out, tuple) else (out,)
        grads = torch.autograd.grad(results[0].float().square().sum(), leaves)
        return (*(x.detach() for x in results), *grads)

    return both


FAMILIES = (rows, varlen, ranges, band, compressed, top_n, blocks, decode, lengths, whole, behind)


def as_triton(call: Call) -> Any:
    """What the call gives when all launches are Triton's own."""
    with (
        mock.patch.object(replay, "undisturbed", lambda: False),
        mock.patch.object(launcher, "undisturbed", lambda: False),
    ):
        return call()


def same(got: Any, want: Any) -> None:
    got = got if isinstance(got, tuple) else (got,)
    want = want if isinstance(want, tuple) else (want,)
    for a, b in zip(got, want, strict=True):
        assert a.shape == b.shape and a.stride() == b.stride() and a.dtype == b.dtype
        assert torch.equal(a.nan_to_num(7.0), b.nan_to_num(7.0))


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("family", FAMILIES, ids=lambda of: of.__name__)
def test_launches_give_what_tritons_own_give(family, seed) -> None:
    torch.manual_seed(seed)
    for turn in range(4):
        # The same sizes on other values, at other addresses; in the last turn other sizes.
        call = family(Draw(seed if turn < 3 else seed + 1000))
        want = as_triton(call)
        for _ in range(1 + turn):
            same(call(), want)


def kernels() -> set[str]:
    """Every kernel of the package that programs are launched of. Those for Hopper have tests of
    their own, and cannot be imported everywhere."""
    found = set()
    for module in pkgutil.walk_packages(nsa_kernels.__path__, "nsa_kernels."):
        if any(x in module.name for x in ("integrations", ".cuda", ".kernels.hopper")):
            continue
        for name, x in vars(importlib.import_module(module.name)).items():
            if isinstance(x, JITFunction) and name.endswith("_kernel"):
                found.add(f"{x.__module__}.{name}")
    return found


def test_every_kernel_was_called_past_tritons_own_launch() -> None:
    assert direct.AVAILABLE and direct.undisturbed()
    for family in FAMILIES:
        for seed in range(16):
            torch.manual_seed(seed)
            call = family(Draw(seed))
            for _ in range(2):
                call()
    direct_ones = {f"{x.__module__}.{x.__name__}" for x, kinds in launcher._known.values() if kinds}
    assert kernels() == {x for x in direct_ones if ".kernels.hopper" not in x}


def test_hooks_of_a_profiler_see_every_launch() -> None:
    from triton import knobs

    call = rows(Draw(3))
    for _ in range(4):
        call()
    seen: list[Any] = []
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


def test_a_replay_works_on_the_stream_it_is_called_on_and_in_a_graph() -> None:
    q, k, v = (torch.randn(n, 64, 64, device="cuda").half() for n in (8, 8, 8))
    for _ in range(4):
        want = nsa_kernels.selection_rows(q, k, v)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        torch.cuda._sleep(100_000_000)
        got = nsa_kernels.selection_rows(q, k, v)
        assert not side.query() and torch.cuda.current_stream().cuda_stream == side.cuda_stream
    side.synchronize()
    same(got, want)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = nsa_kernels.selection_rows(q, k, v)
    q.copy_(torch.randn(q.shape, device="cuda"))
    graph.replay()
    same(got, nsa_kernels.selection_rows(q, k, v))
