"""``NSAttention`` against the paper in plain PyTorch, and decoding against prefill."""

from itertools import pairwise

import nsa_kernels
import pytest
import torch
from cases import DEVICE
from nsa_kernels.attention.layer import NSAttention
from nsa_kernels.attention.naive import naive_nsa

SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 4, "window": 20}


def layer(compression="mean", **sizes):
    torch.manual_seed(0)
    options = {**SIZES, **sizes}
    return NSAttention(24, 4, 2, 16, compression=compression, **options).to(DEVICE)


def tokens(t, b=2):
    return 2 * torch.randn(b, t, 24, generator=torch.Generator().manual_seed(t)).to(DEVICE)


def by_the_paper(of, x):
    q, k, v, gates = of.project(x)
    out = naive_nsa(q, k, v, of.compress_k(k), of.compress_v(v), gates, **SIZES)
    return of.to_out(out.flatten(-2))


@pytest.mark.parametrize(
    ("compression", "t"), [("mean", 1), ("mlp", 7), ("mean", 8), ("mlp", 8), ("mlp", 70)]
)
def test_prefill_is_the_paper(compression, t):
    of, x = layer(compression), tokens(t)
    with torch.no_grad():
        torch.testing.assert_close(of(x), by_the_paper(of, x), atol=2e-5, rtol=1e-4)


def test_gradients_are_those_of_the_paper():
    of = layer("mlp")
    names, leaves = zip(*of.named_parameters(), strict=True)
    x, weight = tokens(40, b=1), tokens(41, b=1)[:, :40]
    got = torch.autograd.grad((of(x) * weight).sum(), leaves)
    want = torch.autograd.grad((by_the_paper(of, x) * weight).sum(), leaves)
    for name, a, b in zip(names, got, want, strict=True):
        torch.testing.assert_close(a, b, atol=1e-3, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}")


def test_a_prompt_may_come_in_chunks_and_tokens_between():
    of, x = layer("mlp"), tokens(30)
    with torch.no_grad():
        whole, cache = of(x), of.cache(room=4)
        edges = [0, 3, 4, 15, 16, 30]
        parts = [of(x[:, begin:end], cache) for begin, end in pairwise(edges)]
    torch.testing.assert_close(torch.cat(parts, 1), whole, atol=2e-5, rtol=1e-4)
    assert cache.tokens == 30 and cache.compressed == (30 - 8) // 4 + 1


def test_a_cache_of_another_batch_is_refused():
    of, x, cache = layer(), tokens(6), layer().cache()
    of(x, cache)
    with torch.no_grad(), pytest.raises(ValueError, match="it holds"):
        of(tokens(1, b=1), cache)


def test_a_failing_step_leaves_the_cache_as_it_was():
    of, x = layer(), tokens(12)
    cache = of.cache(room=4)
    wrong = layer().double()
    with pytest.raises(TypeError, match="dtype"):
        wrong(x.double(), cache)
    assert (cache.tokens, cache.compressed) == (0, 0)
    with torch.no_grad():
        steps = [of(x[:, :7], cache)]
        for t in range(7, 12):
            of.window = -5
            with pytest.raises(ValueError, match="window"):
                of(x[:, t : t + 1], cache)
            of.window = SIZES["window"]
            steps.append(of(x[:, t : t + 1], cache))
        torch.testing.assert_close(torch.cat(steps, 1), of(x), atol=2e-5, rtol=1e-4)


def test_fixed_gates_move_with_the_layer_and_are_no_weights():
    with torch.device("meta"):
        of = NSAttention(24, 4, 2, 16, gates=(0.0, 0.2, 0.75))
    of.to_empty(device=DEVICE)
    assert not any("gates" in name for name in of.state_dict())
    *_, gates = of.bfloat16().double().project(tokens(3).double())
    assert gates.dtype == torch.float64 and gates[0, 0, 0].tolist() == [0.0, 0.2, 0.75]


def test_keys_and_values_of_a_cache_are_of_the_same_tokens():
    cache, compress = nsa_kernels.NSACache(), layer().compress_k
    k = torch.zeros(1, 3, 2, 16, device=DEVICE)
    with pytest.raises(ValueError, match="not of the same tokens"):
        cache.append(k, k[:, :2], compress, compress)
    assert cache.tokens == 0
    cache.append(k, k, compress, compress)
    assert cache.k.shape == cache.v.shape == (1, 2, 3, 16)


def test_a_cache_of_other_strides_is_refused_with_both_pairs():
    """Compressed keys of another stride would leave memory of the cache uninitialised."""
    of, x = layer(), tokens(40, b=1)
    cache = layer(block=16, stride=8).cache()
    with pytest.raises(ValueError, match=r"block 8 and stride 4.* block 16 and stride 8"):
        of(x, cache)
    assert (cache.tokens, cache.compressed) == (0, 0)


@pytest.mark.parametrize("keys", [1, 3])
def test_what_compression_gives_is_counted(keys):
    cache = nsa_kernels.NSACache(block=8, stride=4)
    k = torch.zeros(1, 12, 2, 16, device=DEVICE)  # two blocks of 8, 4 apart
    with pytest.raises(ValueError, match=rf"compress_v.* 2 compressed .* \(1, {keys}, 2, 16\)"):
        cache.append(k, k, lambda x: x[:, :2], lambda x: x[:, :keys])
    assert (cache.tokens, cache.compressed) == (0, 0)
    cache.append(k, k, lambda x: x[:, :2], lambda x: x[:, :2])
    assert cache.k_cmp.shape == (1, 2, 2, 16)


def test_an_empty_batch_goes_through_an_mlp():
    of, x = layer("mlp"), tokens(20, b=1)[:0]
    of(x).sum().backward()
    with torch.no_grad():
        cache = of.cache()
        assert of(x, cache).shape == (0, 20, 24)
        assert of(x[:, :1], cache).shape == (0, 1, 24)


@pytest.mark.parametrize("first", [torch.inference_mode, torch.no_grad])
def test_a_cache_is_filled_and_read_in_either_mode_without_gradients(first):
    then = torch.no_grad if first is torch.inference_mode else torch.inference_mode
    of, x = layer(), tokens(30, b=1)
    with torch.no_grad():
        whole = of(x)
    cache = of.cache(room=28)  # grows in the second mode
    with first():
        of(x[:, :25], cache)
        of(x[:, 25:26], cache)
    with then():
        steps = [of(x[:, t : t + 1], cache) for t in range(26, 30)]
    torch.testing.assert_close(torch.cat(steps, 1), whole[:, 26:], atol=2e-5, rtol=1e-4)


@pytest.mark.parametrize(
    ("sizes", "word"),
    [
        ({"block": 6}, "stride must divide"),
        ({"block_size": 48, "stride": 32}, "stride must divide"),
        ({"stride": 0}, "stride must divide"),
        ({"block_size": 8}, "block_size must be one of"),
        ({"n_selected": 2}, "n_selected must be over 2"),
        ({"gates": (1.0, 0.0)}, "gates are three"),
        ({"heads": 3}, "heads=3 is not a multiple of kv_heads=2"),
        ({"compression": "max"}, '.*"mean" or "mlp"'),
        ({"kv_heads": 0}, "kv_heads must be a whole number of at least 1; got 0"),
        ({"heads": 0}, "heads must be a whole number of at least 1; got 0"),
        ({"dim": 0}, "dim must be a whole number of at least 1; got 0"),
        ({"head_dim": 8}, r"head_dim must be in 16\.\.256; got 8"),
        ({"head_dim": 272}, r"head_dim must be in 16\.\.256; got 272"),
        ({"window": 2.5}, "window must be a whole number of at least 1; got 2.5"),
        ({"n_selected": 4.0}, "n_selected must be a whole number"),
        ({"block": "8"}, "block must be a whole number of at least 1; got '8'"),
        ({"gates": (1.0, None, 0.0)}, "gates are three numbers"),
    ],
)
def test_what_is_no_size_is_refused_when_the_layer_is_made(sizes, word):
    all_sizes = {"dim": 24, "heads": 4, "kv_heads": 2, "head_dim": 16, **SIZES, **sizes}
    with pytest.raises(ValueError, match=f"NSAttention: {word}"):
        NSAttention(**all_sizes)


@pytest.mark.parametrize(
    "sizes", [{"room": -5}, {"room": 0}, {"block": 0}, {"stride": 2.5}, {"block": 6, "stride": 4}]
)
def test_a_cache_of_no_size_is_refused(sizes):
    with pytest.raises(ValueError, match=f"NSACache: .*{next(iter(sizes))}"):
        nsa_kernels.NSACache(**sizes)
    with pytest.raises(ValueError, match="NSACache: room"):
        layer().cache(room=-5)


@pytest.mark.parametrize("name", ["k", "v", "k_cmp", "v_cmp"])
def test_an_empty_cache_says_that_it_is_empty(name):
    with pytest.raises(
        ValueError, match=f"NSACache: nothing was appended yet, so there is no {name}"
    ):
        getattr(nsa_kernels.NSACache(), name)


@pytest.mark.parametrize("x", [torch.zeros(3, 24), torch.zeros(1, 3, 25), torch.zeros(())])
def test_an_input_of_another_shape_is_refused(x):
    with pytest.raises(ValueError, match=r"NSAttention: expected x \[B,T,24\]"):
        layer()(x.to(DEVICE))


def test_packed_sequences_need_a_mean():
    cu = torch.tensor([0, 23, 60], dtype=torch.int32, device=DEVICE)
    with torch.no_grad(), pytest.raises(ValueError, match="packed sequences need compression"):
        layer("mlp")(tokens(60, b=1), cu_seqlens=cu)


@pytest.mark.parametrize("chunk", [1, 3])
def test_a_gradient_that_a_weight_wants_is_not_lost_behind_a_cache(chunk):
    of, x = layer(), tokens(9)
    cache = of.cache()
    of(x[:, :6], cache)
    with pytest.raises(ValueError, match=r"NSAttention: decoding has no backward.*no_grad\(\)"):
        of(x[:, 6 : 6 + chunk], cache)
    assert cache.tokens == 6
    of.requires_grad_(False)
    assert not of(x[:, 6 : 6 + chunk], cache).requires_grad
