"""PyTorch's own attention on selection_rows, in forms whose speeds differ several-fold."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported
from nsabench.implementations._register import baseline
from nsabench.implementations.torch_attention import BACKENDS, select_backend, share_heads

Attention = Callable[..., Tensor]  # q, k, v, sm_scale
ON_CPU = ("flash", "math")


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


def forced(attention: Attention, backend: str) -> Attention:
    """Return `attention` by one backend; it raises `Unsupported` with torch's reason."""
    tried: set[tuple[object, ...]] = set()

    def attend(q: Tensor, k: Tensor, v: Tensor, sm_scale: float) -> Tensor:
        # Collecting warnings costs host time, so it happens once a shape, never in timed calls.
        shape = (q.shape, k.shape, v.shape, q.dtype, q.device)
        if shape in tried:
            with select_backend(backend):
                return attention(q, k, v, sm_scale)
        with select_backend(backend), warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            try:
                out = attention(q, k, v, sm_scale)
            except RuntimeError as error:
                if "No available kernel" not in str(error):
                    raise
                raise Unsupported(_reason(caught) or str(error)) from error
        tried.add(shape)
        return out

    return attend


def _reason(caught: list[warnings.WarningMessage]) -> str:
    """Return torch's reasons against a backend, without references to its source."""
    messages = (str(w.message).split("(Triggered internally")[0].strip() for w in caught)
    return " ".join(text for text in messages if text and "kernel not used because" not in text)


# The controls wrap the first one, which runs under every torch.
for _name, _attention in (("sdpa_heads_as_queries", heads_as_queries), ("sdpa_gqa", gqa)):
    baseline("selection_rows", _name, on_cpu=True)(_attention)
    for _backend in BACKENDS:
        _register = baseline("selection_rows", f"{_name}_{_backend}", on_cpu=_backend in ON_CPU)
        _register(forced(_attention, _backend))


@baseline("selection_rows", "bmm_softmax", on_cpu=True)
def bmm_softmax(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Two batched matrix products around a float32 softmax."""
    scores = torch.bmm(q, k.mT).float() * sm_scale
    return torch.bmm(torch.softmax(scores, -1).to(v.dtype), v)
