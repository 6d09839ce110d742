"""The Gluon kernel of the forward of block selection (``blocks/kernels/hopper.py``) against the
Triton kernel and the formula: groups, head dims, dtypes, packed and strided inputs, chunks."""

import nsa_kernels
import pytest
import torch
from cases import TOLERANCE, draw_blocks
from nsa_kernels.launch import replay
from nsa_kernels.launch.device import runs_gluon
from nsa_kernels.selection.blocks import api, forward
from nsa_kernels.selection.blocks.naive import naive_blocks
from triton.runtime.jit import KernelInterface

# By query heads of a group: batch, tokens, and blocks a query chooses. There are two key heads.
SIZES = {1: (1, 130, 3), 4: (2, 333, 17), 8: (3, 500, 5), 16: (1, 1000, 9), 64: (1, 77, 4)}
DTYPES = [torch.float16, torch.bfloat16]


@pytest.fixture(autouse=True)
def on_hopper(monkeypatch):
    if not runs_gluon(torch.device("cuda", 0)):
        pytest.skip("needs a Hopper GPU and the Triton whose Gluon the kernel is in")
    monkeypatch.setattr(api, "query_major_wins", lambda shape: False)


@pytest.fixture
def ways(monkeypatch):
    """Return a function that returns a call's results by the Gluon and by the Triton kernel."""
    names = []

    own = KernelInterface.__getitem__

    def noted(kernel, grid):
        names.append(kernel.__name__)
        return own(kernel, grid)

    monkeypatch.setattr(KernelInterface, "__getitem__", noted)
    monkeypatch.setattr(replay, "undisturbed", lambda: False)  # nothing is replayed

    def both(call):
        here = call()
        assert "hopper_forward_kernel" in names and "forward_kernel" not in names
        names.clear()
        with monkeypatch.context() as patch:
            patch.setattr(forward, "hopper_fits", lambda *arguments: False)
            there = call()
        assert "forward_kernel" in names and "hopper_forward_kernel" not in names
        names.clear()
        return here, there

    return both


def attend(q, k, v, index, **options):
    return nsa_kernels.block_selection_attention(q, k, v, index, return_lse=True, **options)


def check(ways, *tensors, cu=None, **options):
    """Compare the kernels within the epsilon of the dtype, and compare both with the formula."""
    (out, lse), (other, other_lse) = ways(lambda: attend(*tensors, cu_seqlens=cu, **options))
    bit = torch.finfo(out.dtype).eps
    torch.testing.assert_close(out, other, atol=bit, rtol=bit)
    torch.testing.assert_close(lse, other_lse, atol=1e-4, rtol=1e-5)
    q, k, v, index = tensors
    of = (x.double() for x in (q, k, v))
    want, want_lse = naive_blocks(*of, index, 64, q.shape[3] ** -0.5, cu)
    size = max(1.0, want.abs().max().item())
    torch.testing.assert_close(out.double(), want, atol=2 * TOLERANCE[q.dtype] * size, rtol=0)
    torch.testing.assert_close(lse.double(), want_lse, atol=1e-3, rtol=1e-3)


def drawn(group, d, dv, dtype):
    batch, length, chosen = SIZES[group]
    q, k, v, _, index = draw_blocks(batch, length, 2 * group, 2, d, dv, chosen, dtype)
    return q, k, v, index


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (128, 64), (64, 128)])
@pytest.mark.parametrize("group", SIZES)
def test_every_group_and_head_dim(group, dims, dtype, ways):
    check(ways, *drawn(group, *dims, dtype))


@pytest.mark.parametrize("group", [4, 16])
def test_packed_sequences(group, ways):
    *_, length, chosen = SIZES[16]
    q, k, v, _, index = draw_blocks(1, length, 2 * group, 2, 128, 128, chosen, torch.bfloat16)
    cu = torch.tensor([3, 40, 40, 104, 105, 700, 990], dtype=torch.int32, device="cuda")
    check(ways, q, k, v, index, cu=cu)
    out, _ = attend(q, k, v, index, cu_seqlens=cu)
    assert not out[0, :3].any() and not out[0, 990:].any()


def test_chunk_by_chunk_and_head_by_head(ways):
    check(ways, *drawn(16, 128, 128, torch.bfloat16), workspace_bytes=8 << 20)


@pytest.mark.parametrize("group", [4, 16])
def test_parts_of_one_projection(group, ways):
    q, k, v, index = drawn(group, 128, 128, torch.bfloat16)
    parts = torch.cat([q, k, v], 2).split([q.shape[2], 2, 2], 2)
    assert not parts[0].is_contiguous()
    check(ways, *parts, index)
    # Heads of q begin at byte 16 modulo 32.
    room = torch.randn(*q.shape[:3], 2 * 128 + 16, device="cuda").to(q.dtype)
    check(ways, room[..., 8:136], k, v, index)


def test_64_bit_offsets(ways, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(forward, "beyond_int32", lambda *tensors: True)
        check(ways, *drawn(16, 128, 128, torch.float16))
        check(ways, *drawn(4, 64, 64, torch.bfloat16))
    if torch.cuda.mem_get_info()[0] < 24 << 30:
        pytest.skip("needs 24 GiB of free GPU memory")
    q, k, v, _, index = draw_blocks(1, 130, 4, 1, 64, 64, 3, torch.bfloat16)
    room = torch.empty(130 << 26, dtype=q.dtype, device="cuda")
    check(ways, room.as_strided(q.shape, (130 << 26, 1 << 26, 64, 1)).copy_(q), k, v, index)
