"""A tiny model of Transformers trains, prefills and decodes with NSA, or says what it cannot do."""

import importlib.util
import inspect
import sys
from types import SimpleNamespace

import pytest
import torch
from cases import DEVICE
from nsa_kernels.attention.naive import naive_nsa

transformers = pytest.importorskip(
    "transformers", minversion="5.8", reason="needs Transformers 5.8 or newer"
)
import safetensors.torch  # noqa: E402
from nsa_kernels.integrations import transformers as adapter  # noqa: E402

# The cache has one of two argument names. Transformers ignores unknown names.
NAMED = inspect.signature(transformers.LlamaModel.forward).parameters
CACHE = "cache" if "cache" in NAMED else "past_key_values"
SIZES = {"block": 8, "stride": 4, "block_size": 16, "n_selected": 3, "window": 6}
SAYS = "^" + adapter.OP.replace("(", r"\(") + ": "
adapter.register()


def config(**says):
    sizes = {"vocab_size": 24, "hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    options = {**sizes, **heads, "nsa": SIZES, "attn_implementation": adapter.NAME, **says}
    return transformers.LlamaConfig(**options)


def model(gates=False, **says):
    torch.manual_seed(0)
    made = transformers.LlamaForCausalLM(config(**says)).to(DEVICE)
    if gates:
        adapter.add_gates(made)
    return made


def ids(t, b=1):
    return torch.randint(0, 24, (b, t), generator=torch.Generator().manual_seed(t)).to(DEVICE)


def layer(**says):
    return SimpleNamespace(is_causal=True, config=SimpleNamespace(nsa={**SIZES, **says}))


def tensors(t, b=2):
    generator = torch.Generator().manual_seed(t)
    return [torch.randn(b, h, t, 16, generator=generator).to(DEVICE) for h in (4, 2, 2)]


def by_definition(q, k, v, gates):
    """Compute NSA [B, T, HQ, Dv] of [B, heads, T, D] in float64. Gates are 1/3 unless given."""
    q, k, v = (x.double().transpose(1, 2) for x in (q, k, v))
    means = [x.unfold(1, 8, 4).mean(-1) for x in (k, v)]
    weights = q.new_tensor(gates or [1 / 3] * 3).expand(*q.shape[:3], 3)
    return naive_nsa(q, k, v, *means, weights, **SIZES)


def call(of, q, k, v, **says):
    out, weights = adapter.attention_forward(of, q, k, v, None, scaling=0.25, **says)
    assert weights is None
    return out


@pytest.mark.parametrize("gates", [None, (0.1, 0.6, 0.2)])
def test_prefill_and_what_comes_behind_a_cache_are_the_definition(gates):
    (q, k, v), of = tensors(22, b=1), layer(**({"gates": gates} if gates else {}))
    want, near = by_definition(q, k, v, gates), {"atol": 5e-5, "rtol": 5e-4}
    for new in (22, 1) if gates else (22, 5):
        got = call(of, q[:, :, -new:], k, v)
        torch.testing.assert_close(got.double(), want[:, -new:], **near)


def test_a_token_behind_a_cache_has_gradients_where_they_are_wanted():
    q, k, v = (x.requires_grad_() for x in tensors(11, b=1))
    weight = torch.randn(1, 1, 4, 16, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    got = torch.autograd.grad(call(layer(), q[:, :, -1:], k, v), (q, k, v), weight)
    exact = by_definition(q, k, v, None)[:, -1:]
    for a, b in zip(got, torch.autograd.grad(exact, (q, k, v), weight.double()), strict=True):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=5e-4)


def test_a_model_learns_and_gradients_reach_all_its_parameters():
    of, x = model(gates=True), ids(16)
    optimizer = torch.optim.Adam(of.parameters(), lr=0.04)
    losses = []
    for _ in range(4):
        loss = of(x, labels=x).loss
        loss.backward()
        if not losses:
            idle = [n for n, p in of.named_parameters() if p.grad is None or not p.grad.any()]
            assert idle == []
        losses.append(loss.item())
        optimizer.step()
        optimizer.zero_grad()
    assert losses[-1] < 0.7 * losses[0]
    assert of.model.layers[0].self_attn.nsa_gates.weight.any()


def test_a_model_in_float32_learns_under_autocast():
    of, x = model(gates=True), ids(12)
    exact = of(x, labels=x).loss.item()
    with torch.autocast(DEVICE, torch.bfloat16):
        loss = of(x, labels=x).loss
    loss.backward()
    assert loss.item() == pytest.approx(exact, rel=0.01)
    for name, parameter in of.named_parameters():
        assert parameter.grad.dtype == torch.float32 and parameter.grad.any(), name


def test_tensors_of_two_dtypes_are_computed_in_that_of_the_values():
    q, k, v = tensors(3, b=1)
    k, v = k.bfloat16(), v.bfloat16()
    assert call(layer(), q, k, v).equal(call(layer(), q.bfloat16(), k, v))


def test_generation_with_the_models_cache_is_that_without():
    of, x = model(gates=True).eval(), ids(15, b=2)
    with torch.no_grad():  # gates that depend on the token
        of.model.layers[0].self_attn.nsa_gates.weight.normal_()
    options = {"max_new_tokens": 3, "do_sample": False, "pad_token_id": 0, "eos_token_id": None}
    told = {"output_logits": True, "return_dict_in_generate": True}
    mask = torch.ones_like(x)
    runs = [
        of.generate(x, attention_mask=mask, use_cache=cache, **options, **told)
        for cache in (True, False)
    ]
    assert runs[0].sequences.equal(runs[1].sequences) and runs[0].sequences.shape == (2, 18)
    for a, b in zip(*(run.logits for run in runs), strict=True):
        torch.testing.assert_close(a, b, atol=5e-5, rtol=5e-4)


def test_packed_sequences_are_those_alone_and_must_be_told():
    of, x = model().eval(), ids(19)
    pack = transformers.DataCollatorWithFlattening(return_flash_attn_kwargs=True)
    batch = pack([{"input_ids": part.tolist()} for part in (x[0, :8], x[0, 8:])])
    batch = {name: y.to(DEVICE) if torch.is_tensor(y) else y for name, y in batch.items()}
    with torch.no_grad():
        got = of(**batch, use_cache=False).logits
        alone = torch.cat([of(x[:, :8]).logits, of(x[:, 8:]).logits], 1)
        torch.testing.assert_close(got, alone, atol=5e-5, rtol=5e-4)
        del batch["cu_seq_lens_q"]
        with pytest.raises(ValueError, match=SAYS + "a mask beyond causality.*cu_seq_lens_q"):
            of(**batch, use_cache=False)
        with pytest.raises(ValueError, match=SAYS + "position_ids that do not .*cu_seq_lens_q"):
            of(**batch)  # with the default cache, no mask shows that they are packed


def test_positions_are_read_again_when_they_changed():
    q, k, v = tensors(3)
    positions = torch.arange(5, 8, device=DEVICE)[None]
    call(layer(), q, k, v, position_ids=positions)
    positions[0, 2] = 0
    with pytest.raises(ValueError, match=SAYS + "position_ids that do not ascend by 1.*packed"):
        call(layer(), q, k, v, position_ids=positions)
    with torch.inference_mode():
        untracked = positions.clone().copy_(torch.arange(3, device=DEVICE)[None])
        call(layer(), q, k, v, position_ids=untracked)
        untracked[0, 2] = 0
        with pytest.raises(ValueError, match=SAYS + "position_ids that do not ascend by 1"):
            call(layer(), q, k, v, position_ids=untracked)


def test_gates_begin_as_the_fixed_ones_and_are_saved_with_the_model(tmp_path):
    says = {**SIZES, "gates": [0.2, 0.5, 0.25]}
    of, x = model(nsa=says).eval(), ids(12)
    with torch.no_grad():
        fixed = of(x).logits
        assert adapter.add_gates(of) == adapter.add_gates(of) == ["model.layers.0.self_attn"]
        torch.testing.assert_close(of(x).logits, fixed, atol=1e-5, rtol=1e-5)
        assert "model.layers.0.self_attn.nsa_gates.weight" in of.state_dict()
    of.save_pretrained(tmp_path)
    loaded = transformers.AutoConfig.from_pretrained(tmp_path)
    assert adapter.settings_of(loaded) == adapter.Settings(**says, learned=True)
    with pytest.raises(ValueError, match=SAYS + "the gates of a layer .* call layer"):
        call(of.model.layers[0].self_attn, *(y[:, :2] for y in tensors(3)))


def test_learned_gates_are_loaded_as_documented_and_never_dropped_in_silence(tmp_path):
    of, x = model(gates=True).eval(), ids(9)
    with torch.no_grad():
        of.model.layers[0].self_attn.nsa_gates.weight.normal_()
        want = of(x).logits
        of.save_pretrained(tmp_path)
        make = transformers.AutoModelForCausalLM
        dropped = make.from_pretrained(tmp_path, attn_implementation=adapter.NAME).to(DEVICE)
        with pytest.raises(ValueError, match=SAYS + r".*are learned.*none; .*add_gates\(model\)"):
            dropped(x)
        says = transformers.AutoConfig.from_pretrained(tmp_path)
        again = make.from_config(says, attn_implementation=adapter.NAME).to(DEVICE).eval()
        adapter.add_gates(again)
        again.load_state_dict(safetensors.torch.load_file(tmp_path / "model.safetensors"))
        assert again(x).logits.equal(want)


def test_a_model_is_loaded_to_run_nsa(tmp_path):
    model(attn_implementation="eager").save_pretrained(tmp_path)
    load = transformers.AutoModelForCausalLM.from_pretrained
    of = load(tmp_path, attn_implementation=adapter.NAME)
    assert of.config._attn_implementation == adapter.NAME
    assert adapter.settings_of(of.config) == adapter.Settings(**SIZES)


def test_the_papers_sizes_are_the_default():
    sizes = {"block": 32, "stride": 16, "block_size": 64, "n_selected": 16, "window": 512}
    settings = adapter.settings_of(config(nsa=None))
    assert settings.sizes == sizes and settings.gates == (1 / 3, 1 / 3, 1 / 3)


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ({"blocks": 3}, "config.nsa is a mapping with keys of block, stride, .*blocks"),
        ([8, 4], "config.nsa is a mapping"),
        ({"gates": (1.0, 0.0)}, "the gates of config.nsa .* numbers"),
        ({"learned": "yes"}, "learned of config.nsa is true or false"),
    ],
)
def test_settings_that_say_nothing_are_refused(says, word):
    with pytest.raises(ValueError, match=SAYS + word):
        adapter.settings_of(SimpleNamespace(nsa=says))


@pytest.mark.parametrize(
    ("says", "word"),
    [
        ({"dropout": 0.1}, "no dropout"),
        ({"sliding_window": 8}, "a sliding layer of 8 tokens"),
        ({"output_attentions": True}, "weights are never stored"),
        ({"softcap": 30.0}, "softcap cannot be applied"),
        ({"s_aux": torch.zeros(4)}, "s_aux cannot be applied"),
        ({"is_causal": False}, "attention that is not causal"),
        ({"read_index": [torch.zeros(1)]}, "no continuous batching"),
    ],
)
def test_what_nsa_does_not_compute_is_refused_by_the_layer(says, word):
    with pytest.raises(ValueError, match=SAYS + word):
        call(layer(), *tensors(3), **says)


def test_queries_that_are_not_the_last_tokens_are_refused():
    q, k, v = tensors(6)
    cu = torch.tensor([0, 2, 6], dtype=torch.int32, device=DEVICE)
    with pytest.raises(ValueError, match=SAYS + "2 packed queries for 6 keys"):
        call(layer(), q[:, :, :2], k, v, cu_seq_lens_q=cu)
    with pytest.raises(ValueError, match=SAYS + "6 packed queries for 2 keys"):
        call(layer(), q, k[:, :, :2], v[:, :, :2])
    mask = torch.zeros(1, 1, 6, 6, dtype=torch.bool, device=DEVICE)
    with pytest.raises(ValueError, match=SAYS + "a mask beyond causality"):
        adapter.attention_forward(layer(), q, k, v, mask, cu_seq_lens_q=cu)


def test_what_a_model_cannot_be_run_with_is_refused_by_the_model():
    x, of = ids(6, b=2), model().eval()
    padded = torch.ones_like(x)
    padded[0, 0] = 0
    with torch.no_grad():
        with pytest.raises(ValueError, match=SAYS + "padding cannot be masked"):
            of(x, attention_mask=padded)
        with pytest.raises(ValueError, match=SAYS + "weights are never stored"):
            of(x, output_attentions=True)
        static = transformers.StaticCache(config=of.config, max_cache_len=9)
        with pytest.raises(ValueError, match=SAYS + "the 9 keys .* StaticCache"):
            of(x, **{CACHE: static})
        with pytest.raises(ValueError, match=SAYS + "a mask beyond causality"):
            of(x, attention_mask=torch.zeros(2, 1, 6, 6, device=DEVICE))
        of.train()
        of.model.layers[0].self_attn.attention_dropout = 0.1
        with pytest.raises(ValueError, match=SAYS + "no dropout"):
            of(x)


def test_layers_of_a_window_are_refused_when_the_mask_is_made():
    sizes = {"hidden_size": 24, "intermediate_size": 24, "num_hidden_layers": 1, "vocab_size": 24}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 16}
    says = transformers.MistralConfig(
        **sizes, **heads, sliding_window=4, attn_implementation=adapter.NAME
    )
    of = transformers.MistralForCausalLM(says).to(DEVICE)
    with pytest.raises(ValueError, match=SAYS + "the model has layers that see a window"):
        of(ids(6))


def test_masks_that_are_neither_causal_nor_of_packed_sequences_are_refused():
    make = transformers.masking_utils.create_causal_mask
    of, embeddings = config(), torch.zeros(1, 6, 24, device=DEVICE)
    image = torch.tensor([[-1, 0, 0, 0, -1, -1]], device=DEVICE)  # tokens 1 to 3 see each other
    packed = torch.tensor([[0, 1, 0, 1, 2, 3]], device=DEVICE)
    for positions in (None, packed):
        with pytest.raises(ValueError, match=SAYS + "a mask that is neither causal nor"):
            make(of, embeddings, None, None, positions, block_sequence_ids=image)
    with pytest.raises(ValueError, match=SAYS + "masks by a function of the model's own"):
        make(of, embeddings, None, None, and_mask_function=lambda b, h, q, k: q >= k)
    assert make(of, embeddings, None, None, packed).numel() == 0
    assert make(of, embeddings, None, None) is None
    with pytest.raises(ValueError, match=SAYS + "a mask that is neither causal nor"):
        adapter.causal_mask(6, 6, mask_function=lambda b, h, q, k: q >= k)


def test_gates_that_cannot_be_learned_are_refused():
    of = model(nsa={**SIZES, "gates": (0.0, 1.0, 0.0)})
    with pytest.raises(ValueError, match=SAYS + "learned gates begin as those of config.nsa"):
        adapter.add_gates(of)
    with pytest.raises(ValueError, match=SAYS + "no causal attention layer"):
        adapter.add_gates(torch.nn.Linear(2, 2))


@pytest.mark.parametrize("version", [None, "4.57.6", "5.7.1"])
def test_a_transformers_that_is_missing_or_older_is_named(version, monkeypatch):
    found = SimpleNamespace(__version__=version) if version else None
    monkeypatch.setitem(sys.modules, "transformers", found)
    spec = importlib.util.spec_from_file_location(
        "nsa_kernels.integrations.again", adapter.__file__
    )
    with pytest.raises(ImportError, match=r"needs Transformers 5\.8 or newer: pip install"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_a_compiled_model_is_one_graph_and_computes_the_same():
    of, x = model(gates=True), ids(20)
    compiled = torch.compile(of, fullgraph=True, backend="aot_eager")
    results = []
    for each in (of, compiled):
        of.zero_grad()
        found = each(x, labels=x, use_cache=False)
        found.loss.backward()
        grads = [p.grad.clone() for p in of.parameters()]
        results.append((found.logits.detach(), *grads))
    for got, want in zip(results[1], results[0], strict=True):
        torch.testing.assert_close(got, want)


@pytest.mark.skipif(DEVICE == "cuda", reason="an assertion on a GPU is the end of its context")
def test_a_compiled_model_refuses_what_it_cannot_compute_when_it_runs():
    of, x = model(), ids(20)
    compiled = torch.compile(of, fullgraph=True, backend="aot_eager")
    twice = torch.arange(10, device=DEVICE).repeat(2)[None]
    padded = torch.ones_like(x)
    padded[:, :3] = 0
    with torch.no_grad():
        for says in ({"position_ids": twice}, {"attention_mask": padded}):
            with pytest.raises(RuntimeError, match=SAYS):
                compiled(x, use_cache=False, **says)
        lengths = {f"cu_seq_lens_{of}": torch.tensor([0, 10, 20]).int().to(DEVICE) for of in "qk"}
        longest = {f"max_length_{of}": 10 for of in "qk"}
        packed = {"position_ids": twice, "use_cache": False, **lengths, **longest}
        got, want = (each(x, **packed).logits for each in (compiled, of))
    torch.testing.assert_close(got, want)
