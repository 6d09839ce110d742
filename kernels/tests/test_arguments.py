"""Public calls on documented arguments, which hypothesis draws, give the results of their formulas
in float64. ``test_sentences.py`` has arguments that are refused."""

import pytest
import torch
from cases import MAKERS, check, doubled, make, results
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

SETTINGS = {
    "deadline": None,
    "derandomize": True,
    "database": None,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
CALLS = [name for name in MAKERS if not name.startswith("NSAttention")]
HALF = [torch.float16, torch.bfloat16]
DTYPES = {"select_blocks": [torch.float32]} | {
    name: [*HALF, torch.float32, torch.float64]
    for name in ("selection_attention", "packed_sdpa", "block_selection_attention", "plan_blocks")
}


def layout(x, how):
    """Return a tensor with the values of x in other strides."""
    if how == "strided" and x.dim():
        return torch.stack([x, x], -1)[..., 0]
    if how == "reversed axes" and x.dim() == 3:
        return x.permute(2, 0, 1).contiguous().permute(1, 2, 0)
    return x


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=3, **SETTINGS)
@given(data=st.data())
def test_what_is_documented_gives_what_the_formula_gives(name, data):
    dtype = data.draw(st.sampled_from(DTYPES.get(name, [*HALF, torch.float32])))
    case = make(name, b=data.draw(st.integers(0, 3)), t=data.draw(st.integers(1, 7)), dtype=dtype)
    strides = data.draw(st.sampled_from(["contiguous", "strided", "reversed axes"]))
    tensors = {
        key: x if key == "cu_seqlens" else layout(x, strides) for key, x in case.tensors.items()
    }
    magnitude = data.draw(st.sampled_from([0.0, 1.0, 4.0]))
    if name not in ("select_blocks", "decode_scores"):
        tensors[next(iter(tensors))] *= magnitude
    got = results(case.call(**tensors))
    check(name, got, results(case.formula(**doubled(tensors))), dtype)
