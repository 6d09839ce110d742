"""PyTorch's own attention on selection_rows, in forms whose speeds differ several-fold."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench.implementations._register import baseline
from nsabench.implementations.torch_attention import (
    BACKENDS,
    BACKENDS_ON_CPU,
    forced,
    share_heads,
)


def gqa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """SDPA with one query of H heads over one shared K/V head."""
    out = scaled_dot_product_attention(
        q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), scale=sm_scale, **share_heads()
    )
    return out.squeeze(2)


def heads_as_queries(
    q: Tensor, k: Tensor, v: Tensor, sm_scale: float, keep: Tensor | None = None
) -> Tensor:
    """SDPA with the H heads of a row as H queries of one head."""
    mask = None if keep is None else keep[:, None, None]
    q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale).squeeze(1)


# The controls wrap the first one, which runs under every torch.
for _name, _attention in (("sdpa_heads_as_queries", heads_as_queries), ("sdpa_gqa", gqa)):
    baseline("selection_rows", _name, on_cpu=True)(_attention)
    for _backend in BACKENDS:
        _on_cpu = _backend in BACKENDS_ON_CPU
        _register = baseline("selection_rows", f"{_name}_{_backend}", on_cpu=_on_cpu)
        _register(forced(_attention, _backend))


# Its weights are rounded to the format, so one large weight has the error of a whole value.
@baseline("selection_rows", "bmm_softmax", on_cpu=True, distributions=("dense", "negative_zero"))
def bmm_softmax(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Two batched matrix products around a softmax. Scores that are rounded to 16 bits are wrong
    in some rows."""
    scores = torch.bmm(q.float(), k.mT.float()) * sm_scale
    return torch.bmm(torch.softmax(scores, -1).to(v.dtype), v)
