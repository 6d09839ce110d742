"""What only a CUDA device shows: compiled kernels, big tensors, graphs, streams, torch.compile."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")

import nsa_kernels  # noqa: E402
import oracle  # noqa: E402
from nsa_kernels import Policy  # noqa: E402

DTYPES = [torch.float16, torch.bfloat16, torch.float32]
Call = Callable[[], tuple[torch.Tensor, ...]]


@pytest.fixture(autouse=True)
def _ieee_matmul() -> Iterator[None]:
    torch.manual_seed(0)
    nsa_kernels.reset_routing_report()
    yield


def randn(*size: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(size, device="cuda", dtype=dtype)


def cu_seqlens(*lengths: int) -> torch.Tensor:
    return torch.tensor([0, *lengths]).cumsum(0).to(torch.int32).cuda()


def spans(b: int, s: int, g: int, n: int, s_kv: int, longest: int) -> torch.Tensor:
    start = torch.randint(-8, s_kv, (b, s, g, n))
    found = torch.stack([start, start + torch.randint(-4, longest, start.shape)], -1)
    found[0, 0, 0] = 0
    return found.to(torch.int32).cuda()


def inputs(op: str, dtype: torch.dtype = torch.float16) -> tuple[torch.Tensor, ...]:
    """A case of each op that splits rows."""
    if op == "selection_rows":
        return randn(3, 8, 128, dtype=dtype), *(randn(3, 3000, 128, dtype=dtype) for _ in "kv")
    if op == "selection_varlen":
        cu = cu_seqlens(2000, 0, 1, 700)
        return randn(4, 8, 128, dtype=dtype), *(randn(2701, 128, dtype=dtype) for _ in "kv"), cu
    kv = (randn(2, 2, 3000, 64, dtype=dtype) for _ in "kv")
    return randn(2, 2, 2, 8, 64, dtype=dtype), *kv, spans(2, 2, 2, 5, 3000, 900)


OPS = ["selection_rows", "selection_varlen", "selection_ranges"]


@pytest.mark.parametrize("op", OPS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_split_calls_match_the_reference(op, dtype) -> None:
    args = inputs(op, dtype)
    want = {"selection_rows": oracle.rows, "selection_varlen": oracle.varlen}.get(op, oracle.ranges)
    oracle.assert_close(getattr(nsa_kernels, op)(*args), want(*args), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("h", "d", "dv"), [(1, 16, 16), (17, 80, 48), (8, 256, 256), (33, 192, 128), (70, 64, 96)]
)
@pytest.mark.parametrize("rows", [2, 700])
def test_head_dims_and_head_counts(h, d, dv, rows, dtype) -> None:
    q, k, v = randn(rows, h, d, dtype=dtype), *(randn(rows, 150, x, dtype=dtype) for x in (d, dv))
    want = oracle.rows(q[:3], k[:3], v[:3])
    got = nsa_kernels.selection_rows(q, k, v)
    oracle.assert_close((got[0][:3], got[1][:3]), want, dtype)
    cu = cu_seqlens(*[150] * rows)
    got = nsa_kernels.selection_varlen(q, k.view(-1, d), v.view(-1, dv), cu)
    oracle.assert_close((got[0][:3], got[1][:3]), want, dtype)
    whole = torch.tensor([0, 150], device="cuda").expand(rows, 1, 1, 1, 2)
    got = nsa_kernels.selection_ranges(q[:, None, None], k[:, None], v[:, None], whole)
    oracle.assert_close((got[0][:3, 0, 0], got[1][:3, 0, 0]), want, dtype)


@pytest.mark.parametrize("op", OPS)
def test_runs_are_bit_identical(op) -> None:
    args = inputs(op)
    first = getattr(nsa_kernels, op)(*args)
    for _ in range(20):
        again = getattr(nsa_kernels, op)(*args)
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


@pytest.mark.parametrize("op", OPS)
def test_calls_do_not_synchronise(op) -> None:
    args = inputs(op)
    getattr(nsa_kernels, op)(*args)
    torch.cuda.set_sync_debug_mode("error")
    try:
        getattr(nsa_kernels, op)(*args)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
def test_gate_does_not_synchronise(policy) -> None:
    args = inputs("selection_ranges")
    nsa_kernels.selection_attention(*args, policy=policy)
    torch.cuda.set_sync_debug_mode("error")
    try:
        nsa_kernels.selection_attention(*args, policy=policy)
    finally:
        torch.cuda.set_sync_debug_mode("default")


@pytest.mark.parametrize("op", [*OPS, "selection_attention"])
def test_cuda_graph_replays_on_new_inputs(op) -> None:
    args = inputs("selection_ranges" if op == "selection_attention" else op)
    call = getattr(nsa_kernels, op)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        call(*args)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        captured = call(*args)
    for x in args[:3]:
        x.copy_(torch.randn_like(x))
    graph.replay()
    fresh = call(*args)
    if op == "selection_attention":
        captured, fresh = (captured,), (fresh,)
    assert all(torch.equal(a, b) for a, b in zip(captured, fresh, strict=True))


def test_two_streams_at_once() -> None:
    cases = [inputs(op) for op in OPS for _ in range(2)]
    calls = [getattr(nsa_kernels, op) for op in OPS for _ in range(2)]
    alone = [call(*args) for call, args in zip(calls, cases, strict=True)]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(10):
        together = []
        for i, (call, args) in enumerate(zip(calls, cases, strict=True)):
            with torch.cuda.stream(streams[i % 2]):
                together.append(call(*args))
        torch.cuda.synchronize()
        for a, b in zip(alone, together, strict=True):
            assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_more_than_2_to_the_31_elements() -> None:
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of free GPU memory")
    n, length, d = 5, (1 << 22) + 64, 128
    k = torch.empty(n, length, d, device="cuda", dtype=torch.float16)
    assert k.numel() > 1 << 31
    for row in k:
        row.normal_()
    v = k[..., :16]
    q = randn(n, 2, d)
    picked = slice(length - 5000, length)
    spans_ = torch.tensor([length - 5000, length], device="cuda").expand(1, 1, n, 1, 2)
    got = nsa_kernels.selection_ranges(q[None, None], k[None], v[None], spans_)
    want = oracle.rows(q, k[:, picked], v[:, picked])
    oracle.assert_close((got[0][0, 0], got[1][0, 0]), want, torch.float16)
    out, _ = nsa_kernels.selection_rows(q[-1:], k[-1:], v[-1:])
    whole, _ = nsa_kernels.selection_rows(q, k, v)
    assert torch.equal(whole[-1:], out) or torch.allclose(whole[-1:], out, atol=1e-3)
    flat, flat_v = k.view(-1, d), v.as_strided((n * length, 16), (d, 1))
    cu = torch.tensor([0, *[n * length - 5000] * n, n * length], device="cuda").int()[-(n + 1) :]
    got = nsa_kernels.selection_varlen(q, flat, flat_v, cu)
    oracle.assert_close((got[0][-1:], got[1][-1:]), (want[0][-1:], want[1][-1:]), torch.float16)


def test_strided_inputs_are_read_in_place() -> None:
    q, k, v, r = inputs("selection_ranges")
    k_t = k.transpose(1, 2).contiguous().transpose(1, 2)
    v_t = v.mT.contiguous().mT
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    got = nsa_kernels.selection_ranges(q, k_t, v_t, r)
    assert torch.cuda.max_memory_allocated() - before < k.numel() * k.element_size()
    oracle.assert_close(got, oracle.ranges(q, k, v, r), torch.float16)


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
def test_torch_compile_through_the_gate(policy) -> None:
    q, k, v, r = inputs("selection_ranges")

    def model(q: torch.Tensor) -> torch.Tensor:
        return nsa_kernels.selection_attention(q * 2, k, v, r, policy=policy) + 1

    want = model(q)
    nsa_kernels.reset_routing_report()
    compiled = torch.compile(model, fullgraph=True)
    for _ in range(2):
        torch.testing.assert_close(compiled(q), want, atol=2e-3, rtol=1e-2)
    report = nsa_kernels.routing_report()
    assert (report["kernel"], report["fallback"]) == ((2, 0) if policy.enabled else (0, 2))


def test_torch_compile_with_gradients_uses_the_differentiable_route() -> None:
    q, k, v, r = inputs("selection_ranges", torch.float32)
    k.requires_grad_()

    def loss(k: torch.Tensor) -> torch.Tensor:
        return nsa_kernels.selection_attention(q, k, v, r).square().sum()

    (want,) = torch.autograd.grad(loss(k), k)
    (got,) = torch.autograd.grad(torch.compile(loss, fullgraph=True)(k), k)
    torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-3)


def test_operator_is_well_formed() -> None:
    q, k, v, r = inputs("selection_ranges")
    op = torch.ops.nsa_kernels.selection_attention.default
    torch.library.opcheck(op, (q, k, v, r, None, None, -1))


def test_cpu_tensors_are_refused_and_the_gate_falls_back() -> None:
    args = tuple(x.cpu() for x in inputs("selection_ranges", torch.float32))
    with pytest.raises(ValueError, match="CUDA"):
        nsa_kernels.selection_ranges(*args)
    out = nsa_kernels.selection_attention(*args)
    torch.testing.assert_close(out.double(), oracle.ranges(*args)[0], atol=1e-5, rtol=1e-4)
    assert nsa_kernels.routing_report()["reasons"] == {"not_cuda": 1}
