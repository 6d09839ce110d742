"""Memory that NSA attention takes beside its arguments, its results and what it keeps.

A replay allocates the memory between its launches at once (``Program.bytes``). Its size follows
from shapes. The call is therefore recorded at full size with launches that do nothing, on memory
that is never touched.
"""

from unittest import mock

import pytest
import torch
from nsa_kernels.attention import operator, whole
from nsa_kernels.band import hopper
from nsa_kernels.jit.compat import TRITON_VERSION
from nsa_kernels.launch import device, replay
from nsa_kernels.scoring import hopper as scoring_hopper
from nsa_kernels.selection.blocks import backward as blocks_backward
from nsa_kernels.selection.blocks import forward as blocks_forward
from triton.runtime.jit import KernelInterface

GIB = 1 << 30
BOUND = 3 * GIB
NUMBERS = (32, 16, 64, 16, 512)
Tensors = tuple[torch.Tensor, ...]

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is asked itself")


@pytest.fixture
def _unlaunched():
    """Launches do nothing, on a device as large as an H100."""
    nothing = mock.Mock(return_value=lambda *_, **__: None)
    with (
        mock.patch.object(device, "CPU_LIMITS", device.Device(132, 227 << 10)),
        mock.patch.object(KernelInterface, "__getitem__", nothing),
    ):
        device.device_limits.cache_clear()
        yield
    device.device_limits.cache_clear()
    assert nothing.called


def recorded(function, *args):
    """Return the results of a recorded function, and the bytes that a replay takes beside them."""
    results, program = replay.record(function.__wrapped__, args)
    assert program is not None
    return results, program.bytes


@pytest.mark.usefixtures("_unlaunched")
@pytest.mark.parametrize("heads", [(64, 4), (32, 8)])
@pytest.mark.parametrize(("packed", "gluon"), [(False, False), (False, True), (True, False)])
def test_at_65536_tokens_it_is_less_than_3_gib(heads, packed, gluon, monkeypatch):
    """With the Triton kernels, and with the Gluon kernels if this Triton has their Gluon."""
    if gluon and TRITON_VERSION < (3, 6, 0):
        pytest.skip("no such Gluon")
    for module in (hopper, scoring_hopper, blocks_forward, blocks_backward):
        monkeypatch.setattr(module, "runs_gluon", lambda of: gluon)
    t, d = 65536, 128
    hq, h = heads

    def of(*size):
        return torch.empty(size, dtype=torch.bfloat16)

    q, k, v, gates = of(1, t, hq, d), of(1, t, h, d), of(1, t, h, d), of(1, t, hq, 3)
    cu = torch.empty(9, dtype=torch.int32) if packed else None
    keys = (t // 16) if packed else (t - 32) // 16 + 1
    k_cmp, v_cmp = of(1, keys, h, d), of(1, keys, h, d)
    tensors = (q, k, v, k_cmp, v_cmp, gates, cu, cu)
    _, forward = recorded(whole._launch, q, k, v, gates, cu, None, *NUMBERS, None)
    (out, *kept), with_kept = recorded(operator._launch_kept, *tensors, *NUMBERS, d**-0.5)
    _, backward = recorded(
        operator._launch_backward, torch.empty_like(out), *tensors, *kept, *NUMBERS, d**-0.5
    )
    # Each needs scores, the compressed branch or partials of blocks, which are large.
    assert all(GIB // 2 < each <= BOUND for each in (forward, with_kept, backward))
