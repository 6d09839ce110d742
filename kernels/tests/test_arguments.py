"""Arguments that hypothesis draws for public calls.

With documented arguments, a call gives the result of the formula in float64. With other arguments,
it says in its own words what is wrong.
"""

import re

import nsa_kernels
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
OWN = re.compile(r"(" + "|".join([*nsa_kernels.__all__, "packed_sdpa"]) + r")\b[^:]*: .{10,}", re.S)
"""How a sentence of the library's begins: with the call that speaks."""


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


def corrupted(x, data):
    """A tensor that is wrong, or may be: of other dimensions, sizes, dtype or device."""
    how = data.draw(st.sampled_from(["fewer", "more", "scalar", "dtype", "size", "device"]))
    if how == "fewer" and x.dim() and x.shape[0]:
        return x[0]
    if how == "more":
        return x.unsqueeze(0)
    if how == "scalar":
        return x.new_zeros(())
    if how == "dtype":
        kinds = [torch.bool, torch.int8, torch.int64, torch.float64, torch.complex64]
        return x.to(data.draw(st.sampled_from(kinds)))
    if how == "device":
        return x.to("meta")
    if x.dim() == 0:
        return x.unsqueeze(0)
    axis = data.draw(st.integers(0, x.dim() - 1))
    size = list(x.shape)
    size[axis] = data.draw(st.sampled_from([0, size[axis] + 1, max(size[axis] - 1, 0), 300]))
    return x.new_zeros(size)


def says(call, *arguments, **named):
    """A call works, or refuses by a sentence of the library."""
    try:
        call(*arguments, **named)
    except (TypeError, ValueError, RuntimeError) as error:
        assert OWN.match(str(error)), f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("name", CALLS)
@settings(max_examples=16, **SETTINGS)
@given(data=st.data())
def test_a_wrong_tensor_is_refused_by_a_sentence(name, data):
    case = make(name, b=data.draw(st.sampled_from([1, 1, 0])), t=2)
    tensors = dict(case.tensors)
    for key in data.draw(st.lists(st.sampled_from(sorted(tensors)), min_size=1, max_size=2)):
        tensors[key] = corrupted(tensors[key], data)
    says(case.call, **tensors)
