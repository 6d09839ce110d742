"""The backward of a gated window or compressed branch by the Hopper kernels. It is compared with
the Triton kernels, for one branch and in NSA attention. Two calls must agree to the bit."""

import pytest
import torch
from cases import same
from nsa_kernels import nsa_attention
from nsa_kernels.band import hopper_backward
from nsa_kernels.band.backward import band_backward
from nsa_kernels.band.forward import band_forward
from nsa_kernels.band.geometry import Band
from nsa_kernels.launch import replay
from nsa_kernels.launch.gated import Gated

pytestmark = pytest.mark.usefixtures("on_hopper")

D, SCALE = 128, 0.09
DTYPES = [torch.bfloat16, torch.float16]
HEADS = [(64, 4), (32, 8), (16, 2)]
LENGTHS = [4096, 4103, 8192]
WINDOWS = (63, 512, 1 << 30)


def gates(*size):
    """Draw gates, some of them negative and some 0."""
    drawn = torch.randn(size, device="cuda")
    return drawn.masked_fill(torch.rand(size, device="cuda") < 0.1, 0.0)


def close(got, wanted):
    for one, other in zip(got, wanted, strict=True):
        one, other = one.float(), other.float()
        assert bool(torch.isfinite(one).all())
        assert (one - other).norm() <= 5e-3 * other.norm()
        assert (one - other).abs().max() <= 2e-2 * other.abs().max()


def by_triton(monkeypatch, call):
    with monkeypatch.context() as patch:
        patch.setattr(hopper_backward, "fits", lambda *arguments: False)
        patch.setattr(replay, "undisturbed", lambda: False)  # nothing is replayed
        return call()


def check(monkeypatch, q, k, v, band, added):
    """Compare dq, dk and dv of one branch with Triton's, and to the bit with two more calls."""
    b, t, hq, _ = q.shape
    out, lse = band_forward(q, k, v, band, SCALE)
    grad = torch.randn(out.shape, device="cuda").to(q.dtype)
    rest = (out.float() * grad.float()).sum(-1).transpose(1, 2).contiguous()
    before = 0.05 * torch.randn(out.shape, device="cuda").to(q.dtype)
    gate = gates(b, hq, t)
    assert hopper_backward.fits(q, k, v, grad, band)

    def call():
        gated = Gated(gate, rest, before.clone() if added else None)
        return band_backward(q, k, v, out, lse, grad, None, band, SCALE, gated=gated)

    found = call()
    close(found, by_triton(monkeypatch, call))
    assert all(same(call(), found) for _ in range(2))


def calls(q, k, v):
    """Return q, k, v and band of each branch, and whether its dq is added to another branch's."""
    b, t, _, d = q.shape
    n, h = (t - 32) // 16 + 1, k.shape[2]
    keys = torch.randn(2, b, n, h, d, device="cuda").to(q.dtype)
    near = [((q, k, v), Band(1, 1, min(window, t)), True) for window in WINDOWS]
    others = [((q, keys[0], keys[1]), Band(32, 16, 0), added) for added in (False, True)]
    return [*near, ((q, k, v), Band(1, 1, 200), False), *others]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hq", "h"), HEADS)
@pytest.mark.parametrize("t", LENGTHS)
def test_gradients_of_a_branch_are_those_of_triton(t, hq, h, dtype, monkeypatch):
    torch.manual_seed(t)
    q, k, v = (torch.randn(1, t, x, D, device="cuda").to(dtype) for x in (hq, h, h))
    for tensors, band, added in calls(q, k, v):
        check(monkeypatch, *tensors, band, added)


@pytest.mark.parametrize(("block", "stride"), [(16, 16), (64, 16), (32, 32)])
def test_compressed_keys_of_other_blocks(block, stride, monkeypatch):
    """The last query is alone in its tile, and no query sees some of the keys."""
    torch.manual_seed(block)
    t, hq, h = 4097, 32, 8
    q = torch.randn(1, t, hq, D, device="cuda").bfloat16()
    n = (t - block) // stride + 1
    for beyond in (0, 70):
        k, v = torch.randn(2, 1, n + beyond, h, D, device="cuda").bfloat16()
        check(monkeypatch, q, k, v, Band(block, stride, 0), False)


@pytest.mark.parametrize(("hq", "h"), [(32, 4), (36, 12), (16, 16)])
def test_batches_and_parts_of_one_projection(hq, h, monkeypatch):
    """Groups have eight, three or one heads. For three and one, Triton computes dq."""
    torch.manual_seed(hq)
    room = torch.randn(3, 3219, hq + 2 * h, D, device="cuda").bfloat16()
    for tensors, band, added in calls(*room.split([hq, h, h], 2)):
        check(monkeypatch, *tensors, band, added)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("hq", "h"), HEADS)
@pytest.mark.parametrize("t", LENGTHS)
def test_gradients_of_the_whole_are_those_of_triton(t, hq, h, dtype, monkeypatch):
    torch.manual_seed(t)
    q, k, v, grad = (torch.randn(1, t, x, D, device="cuda").to(dtype) for x in (hq, h, h, hq))
    drawn = gates(1, t, hq, 3).to(dtype)
    leaves = tuple(x.requires_grad_() for x in (q, k, v, drawn))

    def gradients(window):
        out = nsa_attention(q, k, v, drawn, window=window)
        return torch.autograd.grad(out, leaves, grad)

    for window in WINDOWS:
        found = gradients(window)
        close(found, by_triton(monkeypatch, lambda window=window: gradients(window)))
        assert all(same(gradients(window), found) for _ in range(3))  # the last ones are replayed
