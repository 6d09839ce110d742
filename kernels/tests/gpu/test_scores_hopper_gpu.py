"""Block scores by the Hopper kernel, compared with the Triton kernel, in batches and in parts of
one projection. Two calls must agree to the bit."""

import pytest
import torch
from nsa_kernels import compressed_attention_with_scores
from nsa_kernels.band.forward import band_forward
from nsa_kernels.band.geometry import Band
from nsa_kernels.scoring import hopper
from nsa_kernels.scoring.block_scores import block_scores

pytestmark = pytest.mark.usefixtures("on_hopper")

SCALE, BAND = 128**-0.5, Band(32, 16, 0)
LENGTHS = (32, 65, 300, 1984, 2049, 4033, 4096, 4111, 8192)


def drawn(t, hq, h, batches, dtype, n):
    """Return q, k and their lse. q and k are parts of wider tensors; k is doubled, so that weights
    differ more."""
    torch.manual_seed(t)
    q = torch.randn(batches, t, hq + 2 * h, 128, device="cuda").to(dtype)[:, :, :hq]
    k = 2 * torch.randn(batches, n, 2 * h, 128, device="cuda").to(dtype)[:, :, h:]
    return q, k, band_forward(q, k, k, BAND, SCALE)[1]


def score(q, k, lse):
    t, h = q.shape[1], k.shape[2]
    scores = torch.full((q.shape[0], t, h, -(-t // 64)), float("nan"), device="cuda")
    hopper.launch_scores(q, k, lse, scores, SCALE)
    return scores


def visible(scores):
    t, blocks = scores.shape[1], torch.arange(scores.shape[3], device="cuda")
    return (blocks * 64 <= torch.arange(t, device="cuda")[:, None])[:, None].expand_as(scores)


def check(got, wanted):
    """Compare scores of visible blocks. The kernel writes no other scores: they stay NaN."""
    seen = visible(got)
    assert got[~seen].isnan().all()
    torch.testing.assert_close(got[seen], wanted[seen], atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("hq", "h", "batches"), [(64, 4, 1), (32, 8, 1), (16, 1, 2), (6, 1, 3), (4, 2, 1)]
)
def test_it_is_the_kernel_in_triton(dtype, hq, h, batches, monkeypatch):
    monkeypatch.setattr(hopper, "fits", lambda *arguments: False)
    for t in LENGTHS:
        # All keys that the queries could see, or about half of them.
        for n in {max(4, (t - 32) // 16 + 1), max(4, t // 32)}:
            given = drawn(t, hq, h, batches, dtype, n)
            got = score(*given)
            check(got, block_scores(*given, BAND, 64, SCALE))
            for _ in range(3):  # races show in some runs only
                again = score(*given)
                assert torch.equal(again.view(torch.int32), got.view(torch.int32))


def test_rows_behind_the_reach_of_32_bits(monkeypatch):
    """Scores have more than 2^31 elements. The last 4,096 queries' scores are compared."""
    t, h = 131072 + 64, 8
    if torch.cuda.mem_get_info()[0] < 32 << 30:
        pytest.skip("needs 32 GiB")
    given = drawn(t, 2 * h, h, 1, torch.bfloat16, (t - 32) // 16 + 1)
    got = score(*given)[:, -4096:].clone()
    monkeypatch.setattr(hopper, "fits", lambda *arguments: False)
    wanted = block_scores(*given, BAND, 64, SCALE)[:, -4096:]
    seen = torch.arange(got.shape[3], device="cuda") * 64
    seen = (seen <= torch.arange(t - 4096, t, device="cuda")[:, None])[:, None].expand_as(got)
    torch.testing.assert_close(got[seen], wanted[seen], atol=1e-5, rtol=1e-4)


def test_all_blocks_are_cleared_first_where_they_are_asked_for(monkeypatch):
    """Replayed calls must also clear scores: torch does not allocate their tensors one by one."""
    q, k, _ = drawn(8192, 16, 2, 1, torch.bfloat16, 511)
    k = k.contiguous()
    assert hopper.fits(q, k, BAND, 64)
    here = [compressed_attention_with_scores(q, k, k)[2] for _ in range(3)]
    with monkeypatch.context() as patch:
        patch.setattr(hopper, "fits", lambda *arguments: False)
        there = block_scores(q, k, band_forward(q, k, k, BAND, SCALE)[1], BAND, 64, SCALE)
    for scores in here:
        assert not scores[~visible(scores)].any()
        torch.testing.assert_close(scores, there, atol=1e-5, rtol=1e-4)
