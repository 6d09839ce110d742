"""Calls of usual sizes on a CUDA device: graphs, streams, equal bits, no waiting for the device,
torch.compile, memory, and tensors of more elements than int32 counts."""

from functools import partial

import nsa_kernels
import pytest
import torch
from cases import (
    DTYPES,
    captured,
    check,
    doubled,
    ints,
    make,
    offsets,
    paged,
    random_spans,
    results,
    same,
)
from nsa_kernels import Policy, cuda
from nsa_kernels.selection.rows.naive import naive_rows


def randn(*size, dtype=torch.bfloat16):
    return torch.randn(size, device="cuda", dtype=dtype)


def spans():
    kv = (randn(2, 2, 3000, 64) for _ in "kv")
    return randn(2, 2, 2, 8, 64), *kv, random_spans(2, 2, 2, 5, keys=3000) * ints(1, 30)


def whole(*x):
    q, k, v, gates, *cu = x
    return nsa_kernels.nsa_attention(q, k, v, gates, cu_seqlens=cu[0] if cu else None, window=100)


def window(*x):
    return nsa_kernels.sliding_window(*x, window=300)


ROOM, KEYS = 5000, 311


def caches(hq, *lengths):
    torch.manual_seed(0)
    b = len(lengths)
    fine = (randn(b, 2, ROOM, 128), randn(b, 2, ROOM, 128))
    compressed = (randn(b, 2, KEYS, 128), randn(b, 2, KEYS, 128))
    return randn(b, hq, 128), *fine, *compressed, torch.rand_like(randn(b, hq, 3)), ints(*lengths)


def serving(hq):
    args = caches(hq, 0, 1, 30, 64, 1000, 4090)
    q, k, v, k_cmp, v_cmp, _, lengths = args
    lse = torch.zeros(q.shape[:2], device="cuda")
    scores = torch.rand(q.shape[0], 1, 2, -(-ROOM // 64), device="cuda")
    chosen = ints(0, 64, 640, 704).view(1, 1, 2, 2).expand(q.shape[0], 2, -1, -1)
    (pool_k, table), (pool_v, _) = paged(k, 64), paged(v, 64)
    near = partial(nsa_kernels.decode_window, window=512)
    calls = {
        "step": (nsa_kernels.decode_step, args),
        "paged": (nsa_kernels.decode_step, (q, pool_k, pool_v, *args[3:], table)),
        "paged window": (near, (q, pool_k, pool_v, lengths, table)),
        "compressed": (nsa_kernels.decode_compressed, (q, k_cmp, v_cmp, lengths)),
        "scores": (lambda *x: nsa_kernels.decode_scores(*x, 79, lengths), (q, k_cmp, lse)),
        "blocks": (
            lambda *x: nsa_kernels.select_blocks(*x, 16, first_position=lengths - 1),
            (scores,),
        ),
        "window": (near, (q, k, v, lengths)),
        "selected": (nsa_kernels.decode_selected, (q, k, v, chosen, lengths)),
    }
    return {f"decode {name}, {hq} heads": call for name, call in calls.items()}


def calls():
    torch.manual_seed(0)
    q, kv, keys = randn(2, 1000, 16, 128), randn(2, 1000, 2, 128), randn(2, 61, 2, 128)
    one = (q[:1], kv[:1], randn(1, 1000, 2, 128))
    gates, cu = torch.rand_like(q[..., :3]), ints(0, 1, 400, 400, 1000)
    off = partial(nsa_kernels.selection_attention, policy=Policy(enabled=False))
    step = (q[:, 0], *caches(16, 0, 0)[1:5], gates[:, 0])
    chunk = (q[:1, :300], *(randn(1, 2000, 2, 128) for _ in "kv"), gates[:1, :300])
    edges = ints(0, 100, 100, 300), ints(0, 700, 1000, 2000)
    return {
        "rows": (nsa_kernels.selection_rows, (randn(3, 8, 128), *randn(2, 3, 3000, 128))),
        "varlen": (
            nsa_kernels.selection_varlen,
            (randn(4, 8, 128), *randn(2, 2701, 128), offsets((2000, 0, 1, 700))),
        ),
        "ranges": (nsa_kernels.selection_ranges, spans()),
        "gate": (nsa_kernels.selection_attention, spans()),
        "gate, off": (off, spans()),
        "window": (window, (q, kv, randn(2, 1000, 2, 128))),
        "window, packed": (window, (*one, cu)),
        "scores": (nsa_kernels.compressed_attention_with_scores, (q, keys, randn(2, 61, 2, 128))),
        "whole": (whole, (q, kv, randn(2, 1000, 2, 128), gates)),
        "whole, packed": (whole, (*one, gates[:1], cu)),
        "chunks": (
            lambda *x: nsa_kernels.nsa_attention(*x[:4], cu_seqlens=x[4], cu_seqlens_k=x[5]),
            (*chunk, *edges),
        ),
        "step": (nsa_kernels.decode_step, step),
        **serving(8),
        **serving(80),
    }


NAMES = list(calls()) if torch.cuda.is_available() else ["none"]
DIFFERENTIABLE = ("window", "window, packed", "scores", "whole", "whole, packed")


def redraw(*tensors):
    with torch.no_grad():
        for x in tensors:
            x.copy_(torch.randn_like(x))


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_replays_on_new_inputs(name):
    call, args = calls()[name]
    graph, found = captured(lambda: call(*args))
    redraw(*(x for x in args[:3] if x.is_floating_point()))
    for x in args[4:]:
        if name == "chunks" and x.dtype == torch.int32:
            x.copy_(ints(0, 30, 250, 290) if x[-1] == 300 else ints(0, 40, 1200, 1999))
    graph.replay()
    assert same(found, results(call(*args)))


@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", NAMES)
def test_calls_neither_wait_for_the_device_nor_change_their_bits(name, backward):
    """The calls are launched, then recorded, then replayed."""
    if backward and name not in DIFFERENTIABLE:
        pytest.skip("has no backward")
    call, args = calls()[name]
    leaves = [x.detach().requires_grad_(backward) for x in args[:3]] if backward else []
    given, runs = (*leaves, *args[len(leaves) :]), []
    weight = torch.ones_like(results(call(*given))[0])
    for turn in range(6):
        torch.cuda.set_sync_debug_mode("error" if turn else "default")
        try:
            found = results(call(*given))
            runs.append(torch.autograd.grad(found[0], leaves, weight) if backward else found)
        finally:
            torch.cuda.set_sync_debug_mode("default")
    assert all(same(run, runs[0]) for run in runs)


@pytest.mark.parametrize("name", (*DIFFERENTIABLE, "gate"))
def test_compiled_gradients(name):
    call, args = calls()[name]
    leaves = [x.detach().requires_grad_() for x in args[:3]]

    def loss(*x):
        return results(call(*x, *args[3:]))[0].float().square().sum()

    want = torch.autograd.grad(loss(*leaves), leaves)
    got = torch.autograd.grad(torch.compile(loss, fullgraph=True)(*leaves), leaves)
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=2e-2, rtol=2e-2)


def test_two_streams_at_once():
    given = [calls()[name] for name in ("rows", "varlen", "ranges") for _ in range(2)]
    alone = [call(*args) for call, args in given]
    torch.cuda.synchronize()
    streams = [torch.cuda.Stream() for _ in range(2)]
    for _ in range(10):
        together = []
        for i, (call, args) in enumerate(given):
            with torch.cuda.stream(streams[i % 2]):
                together.append(call(*args))
        torch.cuda.synchronize()
        assert all(map(same, together, alone))


def test_a_graph_of_a_training_step_replays_on_new_inputs():
    call, args = calls()["whole"]
    leaves = [x.detach().requires_grad_() for x in args]
    weight = torch.randn_like(call(*leaves))

    def step():
        out = call(*leaves)
        return out.detach(), *torch.autograd.grad(out, leaves, weight)

    graph, found = captured(step)
    redraw(*leaves[:3])
    graph.replay()
    assert same(found, step())


def with_others():
    """Add calls: few and many queries of blocks, rows per head, and the kernels in CUDA C++."""
    attend = partial(nsa_kernels.block_selection_attention, return_lse=True)
    found = calls()
    for t, hq in ((500, 8), (8192, 16)):
        x = randn(1, t, hq, 64), randn(1, t, 1, 64), randn(1, t, 1, 64)
        index = ints(0, 3, 7, 2).expand(1, t, 1, 4).contiguous()
        found[f"blocks of {t} tokens"] = (attend, (*x, index))
    found["rows, per head"] = (nsa_kernels.selection_rows_per_head, found["rows"][1])
    found["cuda rows"] = (cuda.selection_rows, found["rows"][1])
    found["cuda ranges"] = (cuda.selection_ranges, spans())
    return found


TWO = torch.cuda.device_count() > 1


@pytest.mark.skipif(not TWO, reason="needs two CUDA devices")
@pytest.mark.parametrize("backward", [False, True])
@pytest.mark.parametrize("name", list(with_others()) if TWO else ["none"])
def test_launches_go_where_the_tensors_are(name, backward):
    if backward and name not in (*DIFFERENTIABLE, "ranges") and "blocks of" not in name:
        pytest.skip("has no backward")
    if name.startswith("cuda"):
        pytest.importorskip("cuda.core")
    with torch.cuda.device(1):
        call, args = with_others()[name]

    def run():
        leaves = [x.detach().requires_grad_() for x in args[:3]] if backward else []
        found = results(call(*leaves, *args[len(leaves) :]))
        return torch.autograd.grad(found[0].sum(), leaves) if backward else found

    with torch.cuda.device(1):
        want = run()
    torch.cuda.synchronize(1)
    # A spin keeps device 0 busy: work that waited for that device would end after the spin.
    with torch.cuda.device(0):
        torch.cuda._sleep(2_000_000_000)
        got = run()
        torch.cuda.synchronize(1)
        held = not torch.cuda.current_stream(0).query()
        assert torch.cuda.current_device() == 0
        torch.cuda.synchronize(0)
    assert held, "the work waited for the other device"
    assert all(x.device.index == 1 for x in got) and same(got, want)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("h", "d", "dv"), [(1, 16, 16), (17, 80, 48), (8, 256, 256), (33, 192, 128), (70, 64, 96)]
)
@pytest.mark.parametrize("rows", [2, 700])
def test_head_dims_and_head_counts(h, d, dv, rows, dtype):
    case = make("selection_rows", t=rows, hq=h, d=d, dv=dv, n=150, dtype=dtype)
    q, k, v = case.tensors.values()
    want = naive_rows(*(x[:3].double() for x in (q, k, v)))
    every = torch.tensor([0, 150], device="cuda").expand(rows, 1, 1, 1, 2)
    spans = nsa_kernels.selection_ranges(q[:, None, None], k[:, None], v[:, None], every)
    for got in (
        case.call(q, k, v),
        nsa_kernels.selection_varlen(q, k.view(-1, d), v.view(-1, dv), offsets([150] * rows)),
        tuple(x[:, 0, 0] for x in spans),
    ):
        check("selection_rows", tuple(x[:3] for x in got), want, dtype)


def test_more_than_2_to_the_31_elements():
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of free GPU memory")
    n, length, d, half = 5, (1 << 22) + 64, 128, torch.float16
    k = torch.empty(n, length, d, device="cuda", dtype=half)
    assert k.numel() > 1 << 31
    for row in k:
        row.normal_()
    v, q = k[..., :16], randn(n, 2, d, dtype=half)
    last = torch.tensor([length - 5000, length], device="cuda").expand(1, 1, n, 1, 2)
    got = nsa_kernels.selection_ranges(q[None, None], k[None], v[None], last)
    want = naive_rows(q.double(), k[:, -5000:].double(), v[:, -5000:].double())
    check("selection_ranges", tuple(x[0, 0] for x in got), want, half)
    out, _ = nsa_kernels.selection_rows(q[-1:], k[-1:], v[-1:])
    torch.testing.assert_close(nsa_kernels.selection_rows(q, k, v)[0][-1:], out, atol=1e-3, rtol=0)
    flat, flat_v = k.view(-1, d), v.as_strided((n * length, 16), (d, 1))
    cu = torch.tensor([*[n * length - 5000] * n, n * length], device="cuda").int()
    got = nsa_kernels.selection_varlen(q, flat, flat_v, cu)
    check("selection_varlen", tuple(x[-1:] for x in got), tuple(x[-1:] for x in want), half)


def test_strided_inputs_are_read_in_place():
    sizes = {"b": 2, "t": 2, "hq": 16, "h": 2, "d": 64, "dv": 64, "n": 3000, "spans": 90}
    case = make("selection_ranges", **sizes, dtype=torch.float16)
    k, v = case.tensors["k"], case.tensors["v"]
    case.tensors["k"] = k.transpose(1, 2).contiguous().transpose(1, 2)
    case.tensors["v"] = v.mT.contiguous().mT
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    case.call(**case.tensors)
    assert torch.cuda.max_memory_allocated() - before < k.numel() * k.element_size()


def test_cpu_tensors_are_refused_and_the_gate_falls_back():
    case = make("selection_attention", b=2, t=2, n=70, spans=3)
    want = case.formula(**doubled(case.tensors))
    given = {key: x.cpu() for key, x in case.tensors.items()}
    with pytest.raises(ValueError, match="CUDA"):
        nsa_kernels.selection_ranges(**given)
    nsa_kernels.reset_routing_report()
    check("selection_attention", (case.call(**given).cuda(),), (want,), torch.float32)
    assert nsa_kernels.routing_report()["reasons"] == {"not_cuda": 1}


@pytest.mark.parametrize("heads", [(64, 4), (32, 8)])
def test_the_whole_takes_at_most_3_gib_at_65536_tokens(heads):
    """Arguments, results and what the forward keeps do not count. The three turns launch, record
    and replay the call."""
    hq, h = heads
    sizes = ((hq, 128), (h, 128), (h, 128), (hq, 3))
    leaves = [randn(1, 65536, *size).requires_grad_() for size in sizes]
    weight = torch.ones_like(leaves[0])
    bound = 3 << 30

    def beyond(call):
        torch.cuda.reset_peak_memory_stats()
        found = call()
        return torch.cuda.max_memory_allocated() - torch.cuda.memory_allocated(), found

    for _ in range(3):
        with torch.no_grad():
            used, out = beyond(lambda: nsa_kernels.nsa_attention(*leaves))
            assert used <= bound
        del out
        used, out = beyond(lambda: nsa_kernels.nsa_attention(*leaves))
        assert used <= bound
        used, found = beyond(lambda out=out: torch.autograd.grad(out, leaves, weight))
        # Tensors that the forward kept are still allocated during the backward, which frees them.
        kept = 65536 * hq * (3 * 128 * 2 + 3 * 4) + 65536 * h * 16 * 8 + (1 << 26)
        assert used <= bound + kept
        del out, found


def alone(args, entry):
    """Compute the step of one entry on caches cut to its length, without ``cache_seqlens``."""
    q, k, v, k_cmp, v_cmp, gates, lengths = (x[entry : entry + 1] for x in args)
    n = int(lengths)
    held = max(0, (n - 32) // 16 + 1)
    fine = (x[:, :, :n].contiguous() for x in (k, v))
    compressed = (x[:, :, :held].contiguous() for x in (k_cmp, v_cmp))
    return nsa_kernels.decode_step(q, *fine, *compressed, gates) if n else torch.zeros_like(q)


@pytest.mark.parametrize(
    ("page", "heads_last"), [(None, False), (16, True), (64, False), (256, True)]
)
@pytest.mark.parametrize("hq", [8, 80])
def test_one_graph_serves_all_steps_of_a_generation(hq, page, heads_last):
    args = caches(hq, 0, 1, 30, 64, 1000, 4090)
    q, k, v, *others = args
    given, lengths = args, args[-1]
    if page is not None:
        (pool_k, table), (pool_v, _) = paged(k, page, heads_last), paged(v, page, heads_last)
        given = (q, pool_k, pool_v, *others, table)
    graph, (out,) = captured(lambda: nsa_kernels.decode_step(*given))
    for step in range(70):
        redraw(q)
        graph.replay()
        want = nsa_kernels.decode_step(*args)
        if page is None or ROOM % page == 0:
            assert torch.equal(out, want)
        # Pages round the room up. This may split keys elsewhere, and sums may have another order.
        torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
        if step % 23 == 0:
            want = torch.cat([alone(args, i) for i in range(len(lengths))])
            torch.testing.assert_close(out, want, atol=2e-2, rtol=2e-2)
        lengths.add_(1)
