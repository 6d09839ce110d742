"""`scaled_dot_product_attention` as older torches are told what to do (2.2: no torch.nn.attention;
before 2.5: no shared heads). The calls that stand for them still exist in newer ones."""

from __future__ import annotations

import subprocess
import sys

import pytest

torch = pytest.importorskip("torch")

from nsabench import Unsupported  # noqa: E402
from nsabench.implementations.baselines import selection_rows as sdpa  # noqa: E402
from nsabench.implementations.torch_attention import backends as _backends  # noqa: E402

WITHOUT_SDPA_KERNEL = """
import sys, torch, torch.nn.attention, warnings
warnings.simplefilter("ignore")
theirs, sys.modules["torch.nn.attention"] = torch.nn.attention, None
from nsabench import Unsupported
from nsabench.implementations.baselines import selection_rows as sdpa
sys.modules["torch.nn.attention"] = theirs  # newer torches use it themselves
q, k = torch.randn(2, 3, 16), torch.randn(2, 8, 16)
expected = sdpa.bmm_softmax(q, k, k, sm_scale=0.25)
got = sdpa.forced(sdpa.heads_as_queries, "math")(q, k, k, 0.25)
print((got - expected).abs().max().item() < 1e-5)
try:
    sdpa.forced(sdpa.heads_as_queries, "cudnn")(q, k, k, 0.25)
except Unsupported as error:
    print(error)
"""


def test_without_sdpa_kernel() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_SDPA_KERNEL], capture_output=True, text=True, timeout=200
    )
    assert done.stdout == f"True\ntorch {torch.__version__} has no cudnn attention\n", done.stderr


def test_without_shared_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    q, k = torch.randn(2, 3, 16), torch.randn(2, 8, 16)
    expected = sdpa.bmm_softmax(q, k, k, sm_scale=0.25)
    torch.testing.assert_close(sdpa.gqa(q, k, k, 0.25), expected)
    monkeypatch.setattr(_backends, "SHARES_HEADS", False)
    with pytest.raises(Unsupported, match="cannot share K and V"):
        sdpa.gqa(q, k, k, 0.25)
    assert _backends.sharing(False) == {}
