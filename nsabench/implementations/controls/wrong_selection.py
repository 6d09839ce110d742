"""Controls that attend to the wrong keys, as scaled_dot_product_attention was seen to do."""

from __future__ import annotations

from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported, implementation
from nsabench.implementations.baselines.selection_rows import heads_as_queries

DEVICES = ("cuda", "cpu")
FIRST_KEYS = 64


@implementation(
    op="selection_rows",
    name="sdpa_causal_one_query",
    role="control",
    devices=DEVICES,
    caught_by="parity",
)
def sdpa_causal_one_query(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """A causal mask over a single query: it is aligned top-left, so only key 0 is left."""
    heads, length = q.shape[1], k.shape[1]
    if length == 1:
        raise Unsupported("with one key, key 0 is all keys")
    out = scaled_dot_product_attention(
        q.unsqueeze(2),
        k.unsqueeze(1).expand(-1, heads, -1, -1),
        v.unsqueeze(1).expand(-1, heads, -1, -1),
        is_causal=True,
        scale=sm_scale,
    )
    return out.squeeze(2)


@implementation(
    op="selection_rows",
    name="first_64_keys",
    role="control",
    devices=DEVICES,
    caught_by="parity",
)
def first_64_keys(q: Tensor, k: Tensor, v: Tensor, *, sm_scale: float) -> Tensor:
    """Reads one tile of keys and stops, so its time does not grow with the length."""
    if k.shape[1] <= FIRST_KEYS:
        raise Unsupported(f"the first {FIRST_KEYS} keys are all {k.shape[1]} of them")
    return heads_as_queries(q, k[:, :FIRST_KEYS], v[:, :FIRST_KEYS], sm_scale)
