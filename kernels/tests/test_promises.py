"""What every call promises alike: layouts, equal bits, gradients, torch.compile, operators."""

import conformance
import nsa_kernels
import pytest
import torch
from cases import DEVICE, agree, gradients, ints, make, offsets, packed, results
from nsa_kernels import Policy

DIFFERENTIABLE = [
    name
    for name in conformance.CALLS
    if name not in (*conformance.NO_BACKWARD, "nsa_attention with fewer queries", "select_blocks")
]
FUNCTIONS = [name for name in conformance.CALLS if not name.startswith("NSAttention")]
LARGER = {
    "selection_rows": {"b": 2, "t": 1, "n": 700, "d": 64, "dv": 64},  # split among programs
    "selection_varlen": {"t": 3, "n": 700},
    "selection_ranges": {"t": 3, "n": 150, "spans": 4},
    "block_selection_attention": {"t": 66, "blocks": 8},
    "nsa_attention": {"t": 50, "hq": 4, "h": 2},
    "select_blocks": {"t": 7},
}


def both_ways(name, tensors, call):
    """Return results and gradients."""
    given = dict(tensors)
    leaves = [key for key, x in given.items() if x.is_floating_point() and name in DIFFERENTIABLE]
    for key in leaves:
        given[key] = given[key].detach().requires_grad_()
    found = results(call(**given))
    return *(x.detach() for x in found), *gradients(found, [given[key] for key in leaves])


def reversed_in_memory(x):
    axes = tuple(reversed(range(x.dim())))
    return x.permute(axes).contiguous().permute(axes)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_runs_agree_in_any_layout_and_keep_their_inputs(name):
    case = make(name, **{"t": 34, **LARGER.get(name, {})})
    before = {key: x.clone() for key, x in case.tensors.items()}
    odd = {key: reversed_in_memory(x) for key, x in case.tensors.items()}
    first, again, other = (
        both_ways(name, tensors, case.call) for tensors in (case.tensors, case.tensors, odd)
    )
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert all(torch.equal(x, before[key]) for key, x in case.tensors.items())
    for a, b in zip(first, other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("entries", [0, 2])
@pytest.mark.parametrize(
    "name",
    [x for x in conformance.CALLS if x not in ("decode_step", "nsa_attention with fewer queries")],
)
def test_no_tokens_give_nothing(name, entries):
    agree(name, make(name, b=entries, t=0))


def unseen_spans():
    case = make("selection_ranges", t=3, n=80)
    case.tensors["ranges"] = ints(0, 20, 5, 9, 70, 80).view(1, 3, 1, 1, 2)
    return case, 2, [*range(20, 70)]


def unseen_blocks():
    case = make("block_selection_attention", t=96)
    case.tensors["block_indices"] = ints(0, 1, -1, 4).expand(1, 96, 1, 4).contiguous()
    return case, 1, [*range(32, 64), *range(80, 96)]


def unseen_compressed(lengths, keys):
    """Return a case with unseen compressed keys, the axis of keys, and the unseen indices."""
    case = make("compressed_attention", t=70, block=8, stride=8)
    case.tensors |= {key: torch.cat([x, x[:, :4]], 1) for key, x in list(case.tensors.items())[1:]}
    if keys:
        case.tensors |= {"cu_seqlens": offsets(lengths), "cu_keys": offsets(keys)}
        return case, 1, [9, 10, 11]
    return case, 1, [8, 9, 10, 11]


UNSEEN = {
    "selection_ranges": unseen_spans,
    "block_selection_attention": unseen_blocks,
    "compressed_attention": lambda: unseen_compressed((), ()),
    "compressed_attention, packed": lambda: unseen_compressed((40, 30), (4, 8)),
}


@pytest.mark.parametrize("name", UNSEEN)
@pytest.mark.parametrize("held", [float("nan"), float("inf")])
@pytest.mark.parametrize("which", [0, 1], ids=["keys", "values"])
def test_keys_that_no_query_sees_have_no_gradient_whatever_they_hold(name, held, which):
    """A tile of ``compressed_attention`` also holds unseen keys, so NaN may spread to results."""
    case, axis, unseen = UNSEEN[name]()
    op, at = name.partition(",")[0], torch.tensor(unseen, device=DEVICE)
    want = both_ways(op, case.tensors, case.call)
    case.tensors[case.keys[which]].index_fill_(axis, at, held)
    got = both_ways(op, case.tensors, case.call)
    for x in (*want[-2:], *got[-2:]):
        assert (x.index_select(axis, at) == 0).all()
    assert op == "compressed_attention" or all(map(torch.equal, got, want))


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_a_gradient_in_any_layout(name):
    case = make(name, t=17)
    leaves = [case.tensors[key].requires_grad_() for key in case.leaves]
    out = results(case.call(**case.tensors))[0]
    weight = torch.randn(out.shape, device=DEVICE)
    for odd in (reversed_in_memory(weight), torch.stack([weight, weight], -1)[..., 0]):
        got, want = (torch.autograd.grad(out, leaves, x, retain_graph=True) for x in (odd, weight))
        for a, b in zip(got, want, strict=True):
            torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)


def of_policy(policy):
    case = make("selection_attention")
    call = case.call
    case.call = lambda **x: call(**x, policy=policy)
    return case


def with_lengths():
    """Return one case of the decode calls with lengths; ``conformance`` gives them none."""
    case = make("decode_step with cache_seqlens", b=2, t=20)

    def call(q, k, v, k_cmp, v_cmp, gates, cache_seqlens):
        overlap = {"block": 2, "stride": 1}
        options = {"block_size": 16, **overlap}
        compressed, lse = nsa_kernels.decode_compressed(q, k_cmp, v_cmp, cache_seqlens, **overlap)
        scores = nsa_kernels.decode_scores(q, k_cmp, lse, 2, cache_seqlens, **options)
        spans = nsa_kernels.select_blocks(
            scores.unsqueeze(1), 3, block_size=16, first_position=cache_seqlens - 1
        )
        near, _ = nsa_kernels.decode_window(q, k, v, cache_seqlens, window=8)
        chosen, _ = nsa_kernels.decode_selected(q, k, v, spans[:, 0], cache_seqlens)
        return compressed, scores, spans, near, chosen

    case.call = call
    return case


def with_pages():
    case = make("decode_step with block_table", b=2, t=9)

    def call(q, k, v, k_cmp, v_cmp, gates, cache_seqlens, block_table):
        paged = (q, k, v, cache_seqlens, block_table)
        spans = ints(0, 4).expand(2, 1, 1, 2)
        chosen = nsa_kernels.decode_selected(q, k, v, spans, cache_seqlens, block_table)
        return *nsa_kernels.decode_window(*paged, window=8), *chosen

    case.call = call
    return case


def packed_chunks():
    case = make("nsa_attention with fewer queries", t=3)
    case.tensors |= {"cu_seqlens": ints(0, 1, 3), "cu_seqlens_k": ints(0, 2, 5)}
    return case


COMPILED = {
    "selection_attention, any length": lambda: of_policy(Policy()),
    "selection_attention, off": lambda: of_policy(Policy(enabled=False)),
    "nsa_attention, packed": lambda: packed("nsa_attention", (3, 2)),
    "decode_, lengths": with_lengths,
    "decode_, pages": with_pages,
    "nsa_attention with fewer queries, packed": packed_chunks,
}


@pytest.mark.parametrize("name", COMPILED)
def test_one_graph_has_the_same_results_and_gradients(name):
    """A call that read offsets or lengths on the host would break the graph."""
    torch._dynamo.reset()
    case, op = COMPILED[name](), name.partition(",")[0]
    compiled = torch.compile(case.call, fullgraph=True, backend="aot_eager")
    got, want = (both_ways(op, case.tensors, call) for call in (compiled, case.call))
    for a, b in zip(got, want, strict=True):
        torch.testing.assert_close(a, b, atol=2e-5, rtol=1e-4)


def operators():
    """Return arguments for each operator, by its name."""
    band, near = make("compressed_attention", t=24, block=8, stride=4), make("sliding_window", t=24)
    spans = make("selection_ranges", t=2, n=20, spans=2).tensors.values()
    blocks = make("block_selection_attention", t=24, hq=4, h=2, blocks=3).tensors.values()
    (q, k, v), (_, k_cmp, v_cmp) = near.tensors.values(), band.tensors.values()
    whole = (q, k, v, k_cmp, v_cmp, make("nsa_attention", t=24).tensors["gates"])
    *qkv, index = blocks
    cu, numbers, ops = offsets((15, 9)), (8, 4, 16, 4, 20, 0.25), torch.ops.nsa_kernels
    return {
        "attend_band": (q, k_cmp, v_cmp, None, None, 8, 4, 0, 0.25),
        "attend_band, a window": (q, k, v, cu, cu.clone(), 1, 1, 20, 0.25),
        "selection_ranges": (*spans, None, None),
        "selection_attention": (*spans, 0.5, 70, Policy().handle),
        "selection_attention, off": (*spans, None, None, Policy(enabled=False).handle),
        "block_plan": (index, cu, 16, 32),
        "block_query_major": (*qkv, index, cu, 16, 0.25),
        "block_major": (*qkv, *ops.block_plan(index, cu, 16, 32), 16, 0.25, 1 << 30),
        "key_offsets": (cu, 24, 8, 4),
        "means_of_blocks": (k, k, 8, 4, cu, ops.key_offsets(cu, 24, 8, 4)),
        "attend_whole": (*whole, None, None, *numbers),
        "attend_whole_kept": (*whole, cu, offsets((2, 1)), *numbers),
    }


FORWARD_ONLY = ("block_query_major", "attend_whole", "selection_attention")


@pytest.mark.parametrize("name", operators())
def test_operators_are_what_torch_expects(name):
    arguments, (op, *_) = operators()[name], name.split(",")
    for x in arguments:
        if torch.is_tensor(x) and x.is_floating_point():
            x.requires_grad_(op not in FORWARD_ONLY)
    torch.library.opcheck(getattr(torch.ops.nsa_kernels, op).default, arguments)


class Stopped(torch.autograd.Function):
    """Passes no gradient on, not even zeros."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, _):
        return None


STOPPED = [*(x for x in DIFFERENTIABLE if x in FUNCTIONS), "block_major", "attend_whole_kept"]


@pytest.mark.parametrize("name", STOPPED)
def test_a_gradient_that_does_not_come_is_none(name):
    call, arguments = getattr(torch.ops.nsa_kernels, name, None), operators().get(name, ())
    if name in DIFFERENTIABLE:
        case = make(name, t=20)
        call, arguments = (
            lambda *x: case.call(**dict(zip(case.tensors, x, strict=True))),
            case.tensors.values(),
        )
    leaves = [x for x in arguments if torch.is_tensor(x) and x.is_floating_point()]
    for x in leaves:
        x.requires_grad_()
    out = results(call(*arguments))[0]
    (Stopped.apply(out).sum() + sum(x.sum() for x in leaves)).backward()
    assert all(bool((x.grad == 1).all()) for x in leaves)
