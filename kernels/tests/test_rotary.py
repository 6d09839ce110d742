"""The rotary embedding of ``NSAttention`` against complex numbers, in prefill and in decoding."""

import nsa_kernels
import pytest
import torch
from cases import DEVICE
from nsa_kernels.attention.naive import naive_nsa
from nsa_kernels.attention.rotary import positions_of, rotate

SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 3, "window": 12}
BASE = 500.0


def layer(compression="mean", rotary=BASE):
    torch.manual_seed(0)
    of = nsa_kernels.NSAttention(24, 4, 2, 16, compression=compression, rotary=rotary, **SIZES)
    return of.to(DEVICE)


def tokens(t, b=1):
    return 2 * torch.randn(b, t, 24, generator=torch.Generator().manual_seed(t)).to(DEVICE)


def turned(x):
    """Rotate x [B, T, H, D] at positions 0 .. T - 1 in float64: complex numbers times e^(i t w)."""
    half = x.shape[3] // 2
    numbers = torch.complex(x[..., :half].double(), x[..., half:].double())
    frequency = torch.tensor([BASE ** (-2 * i / x.shape[3]) for i in range(half)])
    angle = torch.outer(torch.arange(x.shape[1]).double(), frequency.double()).to(x.device)
    numbers = numbers * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat([numbers.real, numbers.imag], -1)


def by_definition(of, x):
    q, k, v, gates = (part.double() for part in of.project(x))
    q, k = turned(q), turned(k)
    means = (part.unfold(1, 8, 4).mean(-1) for part in (k, v))
    return naive_nsa(q, k, v, *means, gates, **SIZES).flatten(-2) @ of.to_out.weight.double().T


def test_the_layer_turns_queries_and_keys_before_it_compresses():
    of, x = layer(), tokens(34)
    out, want = of(x), by_definition(of, x)
    torch.testing.assert_close(out.double(), want, atol=5e-5, rtol=5e-4)
    leaves = [of.to_q.weight, of.to_k.weight]
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    got = torch.autograd.grad(out, leaves, weight)
    exact = torch.autograd.grad(want, leaves, weight.double())
    for a, b in zip(got, exact, strict=True):
        torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-3)
    with torch.no_grad():
        assert not torch.allclose(out, layer(rotary=None)(x), atol=0.05)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_turn_is_rounded_once(dtype):
    x = tokens(40).unflatten(-1, (2, 12)).to(dtype)
    got, want = rotate(x, positions_of(x), BASE), turned(x)
    assert got.dtype == dtype
    # Half a unit in the last place, and the float32 error of angles up to 40.
    bound = torch.finfo(dtype).eps / 2 * want.abs() + 1e-5
    assert ((got.double() - want).abs() <= bound).all()


@pytest.mark.parametrize(("compression", "prefill"), [("mean", 15), ("mlp", 17)])
def test_a_token_is_decoded_at_its_position_in_the_cache(compression, prefill):
    of, x = layer(compression), tokens(19)
    with torch.no_grad():
        whole, cache = of(x), of.cache(room=4)
        steps = [of(x[:, :prefill], cache)]
        steps += [of(x[:, t : t + 1], cache) for t in range(prefill, 19)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, atol=2e-5, rtol=1e-4)


def test_packed_sequences_begin_anew():
    of, x = layer(), tokens(34)
    cu = torch.tensor([0, 0, 11, 11, 30], dtype=torch.int32, device=DEVICE)
    assert positions_of(x, 0, cu)[:30].tolist() == [*range(11), *range(19)]
    with torch.no_grad():
        alone = torch.cat([of(x[:, :11]), of(x[:, 11:30])], 1)
        packed = of(x, cu_seqlens=cu)
    torch.testing.assert_close(packed[:, :30], alone, atol=2e-5, rtol=1e-4)
    with pytest.raises(TypeError, match="NSAttention: cu_seqlens must be an int32"):
        of(x, cu_seqlens=cu.long())


def test_a_compiler_takes_it_whole():
    def turn(x, cu):
        return rotate(x, positions_of(x, 0, cu), BASE)

    x, cu = tokens(12).unflatten(-1, (2, 12)), torch.tensor([0, 5, 12], dtype=torch.int32)
    compiled = torch.compile(turn, fullgraph=True, backend="aot_eager")
    assert compiled(x, cu.to(DEVICE)).equal(turn(x, cu.to(DEVICE)))


@pytest.mark.parametrize("base", [1.0, 0, -5.0, float("nan"), float("inf"), "10000", True])
def test_a_base_that_turns_nothing_is_refused(base):
    with pytest.raises(ValueError, match=r"NSAttention: rotary .*base"):
        layer(rotary=base)


def test_heads_of_an_odd_dim_are_refused():
    with pytest.raises(ValueError, match="NSAttention: rotary needs an even head_dim; got 17"):
        nsa_kernels.NSAttention(24, 4, 2, 17, rotary=BASE)
