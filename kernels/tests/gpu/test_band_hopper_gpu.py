"""Attention to windows and compressed keys by the Hopper kernel, against the formula: several
lengths, batches, and parts of one projection. Two calls must agree to the bit."""

import pytest
import torch
from nsa_kernels.band import hopper
from nsa_kernels.band.geometry import Band

pytestmark = pytest.mark.usefixtures("on_hopper")

SCALE = 0.09
LENGTHS = (1, 63, 65, 128, 129, 300, 1024, 1040)


def by_formula(q, k, v, band):
    (t, hq), (n, h) = q.shape[1:3], k.shape[1:3]
    k, v = (x.float().repeat_interleave(hq // h, 2) for x in (k, v))
    s = torch.einsum("bthd,bnhd->bhtn", q.float(), k) * SCALE
    end = (torch.arange(t, device="cuda") + 1 - band.block + band.stride).clamp(min=0)
    end = (end // band.stride).clamp(max=n)
    begin = (end - band.window).clamp(min=0) if band.window else end * 0
    keys = torch.arange(n, device="cuda")
    s = s.masked_fill((keys < begin[:, None]) | (keys >= end[:, None]), float("-inf"))
    lse = s.logsumexp(-1)
    p = torch.exp(s - lse[..., None]).nan_to_num(0.0)
    return torch.einsum("bhtn,bnhd->bthd", p, v), lse


def attend(q, k, v, band):
    out = torch.full(q.shape, float("nan"), dtype=q.dtype, device="cuda")
    lse = torch.full((q.shape[0], q.shape[2], q.shape[1]), float("nan"), device="cuda")
    hopper.launch_forward(q, k, v, out, lse, band, SCALE)
    return out, lse


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("hq", "h", "batches"), [(16, 1, 1), (6, 2, 3), (1, 1, 1)])
def test_it_is_the_formula(dtype, hq, h, batches):
    for t in LENGTHS:
        torch.manual_seed(t)
        room = torch.randn(batches, t, hq + 2 * h, 128, device="cuda").to(dtype)
        q, k, v = room.split([hq, h, h], 2)
        calls = [(q, k, v, Band(1, 1, min(window, t))) for window in (1, 64, 512)]
        if t >= 32:
            keys = torch.randn(2, batches, (t - 32) // 16 + 1, h, 128, device="cuda").to(dtype)
            calls.append((q, keys[0], keys[1], Band(32, 16, 0)))
        for call in calls:
            (out, lse), (wanted, wanted_lse) = attend(*call), by_formula(*call)
            seen = torch.isfinite(wanted_lse)
            assert torch.equal(torch.isfinite(lse), seen)
            torch.testing.assert_close(lse[seen], wanted_lse[seen], atol=1e-3, rtol=0)
            torch.testing.assert_close(out.float(), wanted, atol=2e-2, rtol=0)
            again = attend(*call)
            assert torch.equal(again[0], out) and torch.equal(again[1], lse)


@pytest.mark.parametrize("band", [Band(1, 1, 512), Band(256, 64, 0)])
def test_programs_take_many_pieces_of_work(band):
    """Programs compute several tiles of queries, and fill their buffers again and again. The first
    tiles see no key of the second band, and the last tile is not full."""
    torch.manual_seed(0)
    t, hq = 8200, 16
    n = (t - band.block) // band.stride + 1
    q = torch.randn(1, t, hq, 128, device="cuda", dtype=torch.bfloat16)
    k, v = torch.randn(2, 1, n, 1, 128, device="cuda", dtype=torch.bfloat16)
    (out, lse), (wanted, wanted_lse) = attend(q, k, v, band), by_formula(q, k, v, band)
    seen = torch.isfinite(wanted_lse)
    assert torch.equal(torch.isfinite(lse), seen) and bool((out[:, : band.block - 1] == 0).all())
    torch.testing.assert_close(lse[seen], wanted_lse[seen], atol=1e-3, rtol=0)
    torch.testing.assert_close(out.float(), wanted, atol=2e-2, rtol=0)
