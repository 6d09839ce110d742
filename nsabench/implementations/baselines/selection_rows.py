"""PyTorch's own attention on selection_rows: what a custom kernel has to beat.

K and V of a row are shared by its H heads. PyTorch can be told so in several ways, whose speeds
differ several-fold; the best of them is the baseline that counts.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations._register import baseline
from nsabench.implementations.torch_attention import BACKENDS, only, sharing

Attention = Callable[[Tensor, Tensor, Tensor, float], Tensor]
ON_CPU = ("flash", "math")


def gqa(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """One query of H heads over one shared K/V head: q [N,H,1,D]."""
    out = scaled_dot_product_attention(
        q.unsqueeze(2), k.unsqueeze(1), v.unsqueeze(1), scale=sm_scale, **sharing()
    )
    return out.squeeze(2)


def heads_as_queries(
    q: Tensor, k: Tensor, v: Tensor, sm_scale: float, keep: Tensor | None = None
) -> Tensor:
    """The H heads as H queries of one head: q [N,1,H,D]. keep: keys that are not masked, [N,L]."""
    mask = None if keep is None else keep[:, None, None]
    q, k, v = (x.unsqueeze(1) for x in (q, k, v))
    return scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=sm_scale).squeeze(1)


def expand(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
    """K and V expanded over the heads with stride 0: q [N,H,1,D]."""
    heads = q.shape[1]
    out = scaled_dot_product_attention(
        q.unsqueeze(2),
        k.unsqueeze(1).expand(-1, heads, -1, -1),
        v.unsqueeze(1).expand(-1, heads, -1, -1),
        scale=sm_scale,
    )
    return out.squeeze(2)


def forced(attention: Attention, backend: str) -> Attention:
    """Return `attention` by this backend. It raises `Unsupported` with torch's reason against
    it."""

    def call(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
        with only(backend):
            return attention(q, k, v, sm_scale)

    def call_first(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                return call(q, k, v, sm_scale)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                raise Unsupported(_reason(caught) or str(error)) from error

    tried: set[tuple[object, ...]] = set()

    def attend(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
        # Collecting warnings costs host time, so it is done once a shape, not in timed calls.
        shape = (q.shape, k.shape, v.shape, q.dtype, q.device)
        if shape in tried:
            return call(q, k, v, sm_scale)
        out = call_first(q, k, v, sm_scale)
        tried.add(shape)
        return out

    return attend


def _reason(caught: list[warnings.WarningMessage]) -> str:
    """Return torch's reasons against a backend, without where in torch they come from."""
    messages = (str(w.message).split("(Triggered internally")[0].strip() for w in caught)
    return " ".join(text for text in messages if text and "kernel not used because" not in text)


def _register(name: str, attention: Attention, *, on_cpu: bool = True) -> None:
    @baseline("selection_rows", name, on_cpu=on_cpu)
    def call(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
        return attention(q, k, v, sm_scale)


# The first runs under every torch: the controls are wrapped around it.
for _name, _attention in (("sdpa_heads_as_queries", heads_as_queries), ("sdpa_gqa", gqa)):
    _register(_name, _attention)
    for _backend in BACKENDS:
        _register(f"{_name}_{_backend}", forced(_attention, _backend), on_cpu=_backend in ON_CPU)
_register("sdpa_expand", expand)


@baseline("selection_rows", "bmm_softmax", on_cpu=True)
def bmm_softmax(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Two batched matrix products around a float32 softmax."""
    scores = torch.bmm(q, k.mT).float() * sm_scale
    return torch.bmm(torch.softmax(scores, -1).to(v.dtype), v)
