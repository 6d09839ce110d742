"""Dense causal attention, which a model could run instead of NSA."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations import torch_attention as _torch
from nsabench.implementations._register import F, Packing, alternative, baseline

MOST_SCORES = 1 << 31  # that torch's own formula may hold, of all heads


def dense_attention(name: str, **declared: Any) -> Callable[[F], F]:
    """Register a baseline of causal_attention, which is also an alternative to both NSA ops."""

    def register(call: F) -> F:
        baseline("causal_attention", name, **declared)(call)
        for op in ("nsa_attention", "nsa_without_window"):
            alternative(op, f"dense_{name}", "causal_attention", **declared)(call)
        return call

    return register


def causal_sdpa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """Compute SDPA [B,T,HQ,D]; the heads of a group share K and V."""
    queries, keys, values = (x.transpose(1, 2) for x in (q, k, v))
    options = {"is_causal": True, **_torch.share_heads(q.shape[2] != k.shape[2])}
    out = scaled_dot_product_attention(queries, keys, values, scale=sm_scale, **options)
    return out.transpose(1, 2)


@dense_attention("sdpa_math", on_cpu=True)
def sdpa_math(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
    """SDPA by its formula, one packed sequence after another."""
    scores = q.shape[0] * q.shape[2] * options["max_seqlen"] ** 2
    if scores > MOST_SCORES:
        raise Unsupported(f"it would hold {scores:.1e} scores")
    lengths = [q.shape[1]] if cu is None else cu.diff().tolist()
    parts = zip(q.split(lengths, 1), k.split(lengths, 1), v.split(lengths, 1), strict=True)
    attend = _torch.forced(causal_sdpa, "math")
    outs = [attend(*part, options["sm_scale"]) for part in parts]
    return outs[0] if cu is None else torch.cat(outs, 1)


def _register(backend: str) -> None:
    attend = _torch.forced(causal_sdpa, backend)

    @dense_attention(f"sdpa_{backend}")
    def call(q: Tensor, k: Tensor, v: Tensor, cu: Packing = None, **options: Any) -> Tensor:
        if cu is not None:
            raise Unsupported("SDPA does not support packed sequences")
        if backend == "flash":
            _torch.check_flash(q, v)
        group = q.shape[2] // k.shape[2]
        if backend == "efficient" and group > 1:  # it shares no heads
            k, v = (x.transpose(1, 2).repeat_interleave(group, 1).transpose(1, 2) for x in (k, v))
        return attend(q, k, v, options["sm_scale"])


for _backend in ("flash", "cudnn", "efficient"):
    _register(_backend)
