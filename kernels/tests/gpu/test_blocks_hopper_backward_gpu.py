"""The Gluon kernel of the backward of block selection (``blocks/kernels/hopper_backward.py``). It
is compared with the Triton kernel and the formula, for groups, lengths, packed and strided inputs,
chunks, gates and sums. Two calls must agree to the bit."""

import nsa_kernels
import pytest
import torch
from cases import TOLERANCE, captured, draw_blocks, exact_blocks, same
from nsa_kernels.launch import replay
from nsa_kernels.launch.gated import Gated
from nsa_kernels.selection.blocks import backward, config, operators
from nsa_kernels.selection.blocks.plan import build_plan
from triton.runtime.jit import KernelInterface

pytestmark = pytest.mark.usefixtures("on_hopper")

D, SCALE = 128, 128**-0.5
HERE, TRITON = "hopper_backward_kernel", "backward_kernel"
DTYPES = [torch.float16, torch.bfloat16]
# By query heads of a group: batch, tokens, and blocks a query chooses. There are two key heads.
SIZES = {
    1: (1, 130, 3),
    2: (1, 700, 6),
    4: (2, 333, 17),
    8: (3, 500, 5),
    16: (1, 1000, 9),
    32: (1, 200, 4),
    64: (1, 77, 4),
}


@pytest.fixture
def launched(monkeypatch):
    """Return a list, to which the names of launched kernels are added. Replay is off. New memory
    holds NaN or -1, so that a read of unwritten memory shows."""
    names = []

    own = KernelInterface.__getitem__

    def noted(kernel, grid):
        names.append(kernel.__name__)
        return own(kernel, grid)

    def filled(size, dtype, device):
        nothing = float("nan") if dtype.is_floating_point else -1
        return torch.full(size, nothing, dtype=dtype, device=device)

    monkeypatch.setattr(KernelInterface, "__getitem__", noted)
    monkeypatch.setattr(torch, "empty", filled)
    monkeypatch.setattr(replay, "undisturbed", lambda: False)
    return names


@pytest.fixture
def ways(launched, monkeypatch):
    """Return a function that makes a call twice with the Gluon kernel, to the same bits, and once
    with the Triton kernel."""

    def both(call):
        here = call()
        assert HERE in launched and TRITON not in launched
        assert same(call(), here)
        launched.clear()
        with monkeypatch.context() as patch:
            patch.setattr(backward, "hopper_backward_fits", lambda *arguments: False)
            there = call()
        assert TRITON in launched and HERE not in launched
        launched.clear()
        return here, there

    return both


def close(got, wanted, l2, most):
    """Bound the norm and the largest element of each error by ``l2`` and ``most`` times those of
    the gradient, or times 1 if that is more: the gradient of one token may be 0."""
    for name, one, other in zip(("dq", "dk", "dv", "others"), got, wanted, strict=False):
        one, other = one.double(), other.double()
        assert bool(torch.isfinite(one).all()), name
        error = one - other
        norm, largest = (max(1.0, x.item()) for x in (other.norm(), other.abs().max()))
        assert error.norm() <= l2 * norm, (name, error.norm().item() / norm)
        assert error.abs().max() <= most * largest, (name, error.abs().max().item() / largest)


def right(got, wanted):
    """Compare gradients with the formula in float64."""
    dtype = got[0].dtype
    close(got, wanted, 8e-3 if dtype == torch.bfloat16 else 2e-3, 2 * TOLERANCE[dtype])


def check(ways, *tensors, cu=None, **options):
    q, k, v, do, index = tensors
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]

    def call():
        out = nsa_kernels.block_selection_attention(*leaves, index, cu_seqlens=cu, **options)
        return torch.autograd.grad(out, leaves, do)

    here, there = ways(call)
    close(here, there, 5e-3, 2e-2)
    right(here, exact_blocks(*tensors, cu)[2:])
    return here


def drawn(group, dtype=torch.bfloat16, length=None):
    batch, usual, chosen = SIZES[group]
    heads = 2 * group, 2
    return draw_blocks(batch, length or usual, *heads, D, D, chosen, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", SIZES)
def test_every_group(group, dtype, ways):
    check(ways, *drawn(group, dtype))


@pytest.mark.parametrize("length", [1, 2, 63, 64, 65, 127, 129, 1001])
@pytest.mark.parametrize("group", [4, 16])
def test_lengths_that_no_block_divides(group, length, ways):
    check(ways, *drawn(group, length=length))


@pytest.mark.parametrize("group", [4, 16])
def test_packed_sequences(group, ways):
    *_, length, chosen = SIZES[16]
    tensors = draw_blocks(1, length, 2 * group, 2, D, D, chosen, torch.bfloat16)
    cu = torch.tensor([3, 40, 40, 104, 105, 700, 990], dtype=torch.int32, device="cuda")
    for x in check(ways, *tensors, cu=cu):
        assert not x[0, :3].any() and not x[0, 990:].any()


@pytest.mark.parametrize("group", [4, 16])
@pytest.mark.parametrize("workspace", [8 << 20, 24 << 20])
def test_chunk_by_chunk_and_head_by_head(group, workspace, ways):
    tensors = draw_blocks(1, 1000, 4 * group, 4, D, D, 9, torch.bfloat16)
    check(ways, *tensors, workspace_bytes=workspace)


@pytest.mark.parametrize("group", [4, 16])
def test_more_queries_of_a_block_than_an_item_has(group, ways):
    tensors = draw_blocks(1, 2500, 2 * group, 2, D, D, 4, torch.bfloat16)
    tensors[4][..., 0] = 0
    check(ways, *tensors)


@pytest.mark.parametrize("group", [4, 16])
def test_parts_of_one_projection_and_heads_apart(group, ways):
    q, k, v, do, index = drawn(group)
    parts = torch.cat([q, k, v], 2).split([q.shape[2], 2, 2], 2)
    assert not parts[0].is_contiguous()
    check(ways, *parts, do, index)
    # Heads of q begin at byte 16 modulo 32.
    room = torch.randn(*q.shape[:3], 2 * D + 16, device="cuda").to(q.dtype)
    check(ways, room[..., 8 : 8 + D], k, v, do, index)


@pytest.mark.parametrize("added", [False, True])
@pytest.mark.parametrize("group", [1, 4, 8, 16])
def test_a_branch_of_a_gated_sum(group, added, ways):
    q, k, v, do, index = drawn(group)
    gate = torch.randn(q.shape[:3], device="cuda")
    gate[torch.rand(gate.shape, device="cuda") < 0.1] = 0.0
    # The gate weights the output, and so the output's gradient.
    weighted = do.double() * gate.double().unsqueeze(-1)
    out, lse, *want = exact_blocks(q, k, v, weighted, index)
    rest = (out * do.double()).sum(-1).float().flatten(0, 1)
    before = tuple(0.1 * torch.randn_like(x.flatten(0, 1)) for x in (q, k, v))
    shape = config.shape_of(q, k, v, index.shape[3], 64)
    plan = build_plan(index, None, 64, 256, cleared=False)

    def call():
        dq, *onto = (x.clone() if added else None for x in before)
        return backward.block_major_backward(
            *(x.flatten(0, 1) for x in (q, k, v, q, lse.float(), do)),
            plan,
            SCALE,
            1,
            config.backward_config(shape),
            Gated(gate.flatten(0, 1), rest, dq),
            tuple(onto) if added else None,
        )

    here, there = ways(call)
    close(here, there, 5e-3, 2e-2)
    want = tuple(x.flatten(0, 1) for x in want)
    if added:
        want = tuple(x + y.double() for x, y in zip(want, before, strict=True))
    right(here, want)


def test_runs_agree_bit_for_bit_replayed_on_streams_and_captured():
    """The sequence is so long that many programs run at once, in another order in each run."""
    q, k, v, do, index = draw_blocks(1, 8192, 64, 4, D, D, 16, torch.bfloat16)
    others = [torch.randn_like(x) for x in (q, k, v, do)]
    plan = nsa_kernels.plan_blocks(q, k, v, index)
    lists = (plan.entries, plan.places, plan.first, plan.count, plan.edges)

    def given(q, k, v, do):
        out, lse = nsa_kernels.block_selection_attention(q, k, v, index, return_lse=True)
        return q, k, v, out, lse, do

    def call(tensors):
        return operators._launch_backward(*tensors, *lists, 64, SCALE, 1 << 30)

    operators._launch_backward.programs.clear()
    one, other = given(q, k, v, do), given(*others)
    first, of_other = call(one), call(other)
    for _ in range(10):
        assert same(call(one), first) and same(call(other), of_other)
    programs = operators._launch_backward.programs.values()
    launches = [x for of in programs if isinstance(of, replay.Program) for x in of.launches]
    assert HERE in {x.kernel.__name__ for x in launches}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        beside = call(one)
    here = call(other)
    side.synchronize()
    assert same(beside, first) and same(here, of_other)
    room = tuple(x.clone() for x in one)
    graph, found = captured(lambda: call(room))
    for tensors, want in ((one, first), (other, of_other), (one, first)):
        for x, y in zip(room, tensors, strict=True):
            x.copy_(y)
        graph.replay()
        assert same(found, want)
