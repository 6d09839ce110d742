"""The drop-in beside fla-core's own kernels, on a CUDA device that has both."""

import pytest
import torch
from nsa_kernels.integrations.fla import parallel_nsa

T, SIZE = 600, 32


def theirs():
    return pytest.importorskip("fla.ops.nsa.parallel", reason="needs fla-core").parallel_nsa


def draw(dtype):
    torch.manual_seed(0)
    return [torch.randn(1, T, h, 64, device="cuda").to(dtype) for h in (32, 2, 2)]


def near(got, want):
    """bool [1, T, HQ]: the rows that agree to what bfloat16 resolves of outputs near 1."""
    return (got.float() - want.float()).abs().amax(-1) < 3e-2


def test_given_blocks_are_attended_to_alike_both_ways():
    attend, leaves = theirs(), [x.requires_grad_() for x in draw(torch.bfloat16)]
    own = torch.arange(T, device="cuda") // SIZE
    blocks = torch.stack([torch.zeros_like(own), (own - 1).clamp(min=1), own, own // 2], -1)
    # One that is given twice counts twice there.
    blocks = torch.where(blocks == own[:, None], -1, blocks)
    blocks[:, 2] = own
    blocks[blocks[:, 3] == 0, 3] = -1
    blocks[own == 0, :2] = -1
    blocks[blocks[:, 3] == blocks[:, 1], 3] = -1
    index = blocks.view(1, T, 1, 4).expand(1, T, 2, 4).contiguous()
    weight = torch.randn(1, T, 32, 64, device="cuda", dtype=torch.bfloat16)
    results = []
    for call in (parallel_nsa, attend):
        out = call(*leaves, block_indices=index, block_counts=4, block_size=SIZE)
        results.append((out, *torch.autograd.grad(out, leaves, weight)))
    ours, want = results
    assert near(ours[0], want[0]).all()
    for a, b in zip(ours[1:], want[1:], strict=True):
        assert (a.float() - b.float()).norm() < 2e-2 * b.float().norm()


def test_chosen_blocks_and_compression_are_alike():
    """Rows whose choice hangs on rounding may differ: few do."""
    attend, tensors = theirs(), draw(torch.bfloat16)
    gates = torch.rand(2, 1, T, 32, device="cuda", dtype=torch.bfloat16)
    cu = torch.tensor([0, 190, T], device="cuda")
    for says in ({}, {"cu_seqlens": cu}):
        options = {"block_counts": 8, "block_size": SIZE, **says}
        got, want = (call(*tensors, *gates, **options) for call in (parallel_nsa, attend))
        assert near(got, want).float().mean() > 0.99
