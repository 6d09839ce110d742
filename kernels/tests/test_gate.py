"""The gate: choice, named fallbacks, report, settings, custom operator (CPU, interpreter)."""

from __future__ import annotations

import copy
import logging
import pickle
import sys

import nsa_kernels
import oracle
import pytest
import torch
from nsa_kernels import Policy
from nsa_kernels.gate import api as gate
from nsa_kernels.gate import routing
from nsa_kernels.gate.policy import by_handle, choose
from nsa_kernels.launch.mode import Mode

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.fixture(autouse=True)
def _fresh_report():
    nsa_kernels.reset_routing_report()
    yield
    nsa_kernels.reset_routing_report()


def draw(dtype=torch.float32, b=2, s=2, g=2, h=3, d=16, dv=24, s_kv=70, n=3):
    gen = torch.Generator().manual_seed(1)
    shapes = ((b, s, g, h, d), (b, g, s_kv, d), (b, g, s_kv, dv))
    q, k, v = (torch.randn(x, generator=gen).to(dtype).to(DEVICE) for x in shapes)
    start = torch.randint(-5, s_kv, (b, s, g, n), generator=gen)
    r = torch.stack([start, start + torch.randint(-3, 30, start.shape, generator=gen)], -1)
    r[0, 0, 0] = 0
    return q, k, v, r.to(torch.int32).to(DEVICE)


def report() -> tuple[int, dict[str, int]]:
    got = nsa_kernels.routing_report()
    assert got["fallback"] == sum(got["reasons"].values())
    return got["kernel"], got["reasons"]


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
@pytest.mark.parametrize("hint", [None, 64])
def test_both_routes_match_the_reference(policy, hint) -> None:
    args = draw()
    out = nsa_kernels.selection_attention(*args, policy=policy, selected_len=hint)
    torch.testing.assert_close(out.double(), oracle.ranges(*args)[0], atol=2e-5, rtol=1e-3)
    assert out.is_contiguous() and (out[0, 0, 0] == 0).all()
    assert report() == ((1, {}) if policy.enabled else (0, {"disabled": 1}))


@pytest.mark.parametrize(
    ("policy", "change", "reason"),
    [
        (Policy(enabled=False), {}, "disabled"),
        (Policy(group_kernels=False), {}, "group_kernels_off"),
        (Policy(min_len=100), {}, "below_min_L"),
        (Policy(min_len=None), {}, "never_faster"),
        (Policy(min_len={"another GPU": 1}), {}, "never_faster"),
        (Policy(), {"dtype": torch.float64}, "dtype"),
        (Policy(), {"d": 8}, "head_dim"),
    ],
)
def test_each_fallback_has_a_name_and_is_logged_once(policy, change, reason, caplog) -> None:
    args = draw(**change)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        for _ in range(3):
            nsa_kernels.selection_attention(*args, policy=policy)
    assert report() == (0, {reason: 3})
    assert [reason in r.message for r in caplog.records] == [True]
    assert reason in nsa_kernels.routing_report()["texts"]


def test_threshold_force_and_hint() -> None:
    q, k, v, _ = draw()
    assert choose(Policy(min_len=70), q, k, v, 70) is None
    assert choose(Policy(min_len=71), q, k, v, 70) == "below_min_L"
    assert choose(Policy(min_len=71, force=True), q, k, v, 70) is None
    assert choose(Policy(min_len=None, force=True), q, k, v, 70) is None


def test_inputs_that_need_a_gradient_get_one() -> None:
    q, k, v, r = draw(dtype=torch.float64)
    q, k, v = (x.requires_grad_() for x in (q, k, v))
    nsa_kernels.selection_attention(q, k, v, r).square().sum().backward()
    grads = [x.grad.clone() for x in (q, k, v)]
    for x in (q, k, v):
        x.grad = None
    scores = (q.transpose(1, 2).flatten(2, 3) @ k.mT * q.shape[-1] ** -0.5).view(2, 2, 2, 3, 70)
    keep = oracle.union_mask(r, 70).transpose(1, 2).unsqueeze(3)
    probs = torch.where(keep, scores, -1e30).softmax(-1) * keep
    out = probs.flatten(2, 3) @ v
    out.square().sum().backward()
    for got, x in zip(grads, (q, k, v), strict=True):
        torch.testing.assert_close(got, x.grad)
    before = report()
    q32, k32, v32, r = draw()
    nsa_kernels.selection_attention(q32.requires_grad_(), k32, v32, r).sum().backward()
    assert report() == (before[0] + 1, before[1])  # the kernel has a backward
    assert q32.grad is not None and q32.grad.any()


def test_an_error_in_the_kernel_is_an_error(monkeypatch) -> None:
    def broken(*args, **kwargs):
        raise RuntimeError("no such kernel image")

    monkeypatch.setattr(gate, "launch_ranges", broken)
    args = draw()
    with pytest.raises(RuntimeError, match="kernel image"):
        nsa_kernels.selection_attention(*args)
    nsa_kernels.reset_routing_report()
    out = nsa_kernels.selection_attention(*args, policy=Policy(on_error="fallback"))
    torch.testing.assert_close(out.double(), oracle.ranges(*args)[0], atol=2e-5, rtol=1e-3)
    assert report() == (0, {"kernel_error": 1})
    assert "kernel image" in nsa_kernels.routing_report()["errors"]["kernel_error"]


def test_wrong_inputs_are_never_swallowed() -> None:
    q, k, v, r = draw()
    with pytest.raises(ValueError, match="expected q"):
        nsa_kernels.selection_attention(q, k[:, :1], v, r, policy=Policy(on_error="fallback"))


def test_environment_is_read() -> None:
    policy = Policy.from_environment(
        {
            "NSA_USE_TRITON_SEL": "0",
            "NSA_SEL_TRITON_MIN_L": "512",
            "NSA_SEL_TRITON_GROUP": "off",
            "NSA_TRITON_SEL_FORCE": "true",
            "NSA_DEBUG_TIMING": "1",
            "NSA_DEBUG_COMPARE": "yes",
            "NSA_DEBUG_SHAPES": "on",
        }
    )
    assert not policy.enabled and policy.min_len == 512 and not policy.group_kernels
    assert policy.force and policy.debug_timing and policy.debug_compare and policy.debug_shapes
    assert Policy.from_environment({}).enabled
    for bad in ({"NSA_USE_TRITON_SEL": "maybe"}, {"NSA_SEL_TRITON_MIN_L": "-1"}):
        with pytest.raises(ValueError, match=next(iter(bad))):
            Policy.from_environment(bad)
    with pytest.raises(ValueError, match="on_error"):
        Policy(on_error="ignore")  # type: ignore[arg-type]


def test_thresholds_file(tmp_path) -> None:
    path = tmp_path / "thresholds.yaml"
    for text, want in (("256", 256), ("null", None), ("{A: 64, B: null}", {"A": 64, "B": None})):
        path.write_text(f"runtime: {{sel_triton_min_L: {text}}}\n")
        assert Policy.from_thresholds(path).min_len == want
    for text in ("{}", "runtime: {sel_triton_min_L: many}", "runtime: {sel_triton_min_L: true}"):
        path.write_text(text)
        with pytest.raises(ValueError, match="sel_triton_min_L"):
            Policy.from_thresholds(path)


def test_debug_settings_log(caplog) -> None:
    args = draw()
    policy = Policy(debug_compare=True, debug_shapes=True)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        nsa_kernels.selection_attention(*args, policy=policy)
        nsa_kernels.selection_attention(*args, policy=policy)
    texts = [r.message for r in caplog.records]
    assert sum("shapes" in t for t in texts) == 1 and sum("difference" in t for t in texts) == 2


@pytest.mark.parametrize("hint", [0, 1])
def test_hint_that_is_too_small_is_an_error_in_the_fallback(hint) -> None:
    if DEVICE == "cuda":
        pytest.skip("a failed device assertion would end the CUDA context")
    q, k, v, r = draw()
    with pytest.raises(RuntimeError):
        nsa_kernels.packed_sdpa(q, k, v, r, selected_len=hint)


def test_operator_is_well_formed() -> None:
    q, k, v, r = draw()
    op = torch.ops.nsa_kernels.selection_attention.default
    for policy in (Policy(), Policy(enabled=False)):
        torch.library.opcheck(op, (q, k, v, r, None, None, policy.handle))
        torch.library.opcheck(op, (q, k, v, r, 0.5, 70, policy.handle))


def test_choice_is_cheap() -> None:
    """The bar is 1 us, which kernels/benchmarks/gate.py shows. Here calls are counted: a machine
    that is busy takes longer, and makes no more of them."""
    q, k, v, _ = draw()
    policy = Policy(min_len=1)
    choose(policy, q, k, v, 70)  # what a GPU is called is asked once
    calls: list[object] = []
    sys.setprofile(lambda _, event, what: calls.append(what) if event.endswith("call") else None)
    try:
        choose(policy, q, k, v, 70)
    finally:
        sys.setprofile(None)
    assert len(calls) <= 15, calls  # `choose` and what ends the count are two


def test_chosen_config_is_reported() -> None:
    q, k, v, r = draw()
    config = nsa_kernels.chosen_config("selection_ranges", q, k, v, r)
    assert config.block_l >= 16 and config.splits >= 1
    with pytest.raises(ValueError, match="no configuration"):
        nsa_kernels.chosen_config("selection_blocks", q, k, v)
    assert routing.routing_report()["kernel"] == 0


@pytest.mark.parametrize(
    ("change", "error", "word"),
    [
        (lambda q, k, v, r: (q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1), r), ValueError, "k"),
        (lambda q, k, v, r: (q, k[:, :, :32], v, r), ValueError, "expected q"),
        (lambda q, k, v, r: (q, k[..., :8], v, r), ValueError, "expected q"),
        (lambda q, k, v, r: (q, k, v, r.float()), TypeError, "int32"),
        (lambda q, k, v, r: (q, k, v, r.to("meta")), ValueError, "ranges is on"),
    ],
)
def test_the_fallback_checks_the_contract_too(change, error, word) -> None:
    """Groups were mixed up, and keys taken from the next group's, where shapes did not fit."""
    args = change(*draw())
    with pytest.raises(error, match=word):
        nsa_kernels.selection_attention(*args, policy=Policy(enabled=False))
    with pytest.raises(error, match=word):
        nsa_kernels.packed_sdpa(*args)


def test_nothing_selected_of_large_values_is_zero_with_zero_gradients() -> None:
    """Their sum is infinite in float16, and 0 times that is NaN."""
    q, k, v, r = (x.abs().half() * 3e4 if x.is_floating_point() else x for x in draw())
    leaves = [x.clamp(max=6e4).requires_grad_() for x in (q, k, v)]
    for call in ({"ranges": r[..., :0, :]}, {"ranges": torch.zeros_like(r), "selected_len": 0}):
        out = nsa_kernels.packed_sdpa(*leaves, **call)
        grads = torch.autograd.grad(out.float().sum(), leaves)
        assert all((x == 0).all() for x in (out, *grads))


def test_a_copied_policy_is_its_own() -> None:
    """A handle is a place in one process's list: in another it names another policy, or none."""
    policy = Policy(enabled=False, min_len={"A": 64, "B": None}, debug_shapes=True)
    for other in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert other.handle != policy.handle and by_handle(other.handle) is other
        assert repr(other) == repr(policy) and other.off == "disabled" and not other.plain


def test_no_keys_may_be_promised_to_the_fallback_and_not_fewer() -> None:
    q, k, v, r = draw()
    assert not nsa_kernels.packed_sdpa(q, k, v, torch.zeros_like(r), selected_len=0).any()
    with pytest.raises(ValueError, match="selected_len must be a whole number of at least 0"):
        nsa_kernels.packed_sdpa(q, k, v, r, selected_len=-1)


def test_a_mix_of_dtypes_is_no_reason_to_fall_back() -> None:
    q, k, v, r = draw()
    with pytest.raises(TypeError, match="must share one dtype"):
        nsa_kernels.selection_attention(q, k.half(), v.half(), r)
    assert report() == (0, {})


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
def test_autocast_changes_neither_dtype_nor_precision(policy, dtype) -> None:
    """Packed SDPA gave bfloat16 there and the kernel q's dtype."""
    args = draw(dtype=dtype)
    want = nsa_kernels.selection_attention(*args, policy=policy)
    op = torch.ops.nsa_kernels.selection_attention
    with torch.autocast(DEVICE, torch.bfloat16):
        out = nsa_kernels.selection_attention(*args, policy=policy)
        traced = op(*args, None, None, policy.handle)
    assert torch.equal(out, want) and out.dtype == traced.dtype == dtype
    leaf = args[0].clone().requires_grad_()
    with torch.autocast(DEVICE, torch.bfloat16):
        out = nsa_kernels.selection_attention(leaf, *args[1:], policy=policy)
    out.sum().backward()
    assert out.dtype == leaf.grad.dtype == dtype


def test_a_parameter_is_debugged_and_falls_back_as_any_tensor(monkeypatch, caplog) -> None:
    q, k, v, r = draw()
    q = torch.nn.Parameter(q)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        nsa_kernels.selection_attention(q, k, v, r, policy=Policy(debug_compare=True))
    assert any("difference" in record.message for record in caplog.records)

    def broken(*args, **kwargs):
        raise RuntimeError("no such kernel image")

    monkeypatch.setattr(gate, "ranges_operator", broken)
    out = nsa_kernels.selection_attention(q, k, v, r, policy=Policy(on_error="fallback"))
    assert report() == (1, {"kernel_error": 1}) and out.requires_grad


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
def test_mixed_dtypes_are_refused_by_a_sentence_on_both_routes(policy) -> None:
    q, k, v, r = draw()
    for args in ((q, k.half(), v, r), (q, k, v.double(), r)):
        with pytest.raises(TypeError, match="q, k and v must share one dtype"):
            nsa_kernels.selection_attention(*args, policy=policy)
        with pytest.raises(TypeError, match="packed_sdpa: q, k and v must share one dtype"):
            nsa_kernels.packed_sdpa(*args)
    with pytest.raises(TypeError, match="share one dtype of"):
        nsa_kernels.selection_attention(*(x.long() for x in (q, k, v)), r, policy=policy)


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
@pytest.mark.parametrize("hint", [-1, 2.5, "70", True])
def test_a_hint_that_is_no_number_of_keys_is_refused_on_both_routes(policy, hint) -> None:
    args = draw()
    with pytest.raises(ValueError, match="selected_len must be a whole number of at least 0"):
        nsa_kernels.selection_attention(*args, policy=policy, selected_len=hint)


def test_comparing_makes_no_call_fail_that_works_without() -> None:
    """The hint is none but a hint to the kernel, and was a bound where packed SDPA compared."""
    args = draw()
    want = nsa_kernels.selection_attention(*args, selected_len=1)
    policy = Policy(debug_compare=True)
    out = nsa_kernels.selection_attention(*args, policy=policy, selected_len=1)
    assert torch.equal(out, want)


def test_a_comparison_that_fails_is_logged_and_not_raised(monkeypatch, caplog) -> None:
    def broken(*args, **kwargs):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(gate, "packed_sdpa", broken)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        nsa_kernels.selection_attention(*draw(), policy=Policy(debug_compare=True))
    assert "out of memory" in caplog.text


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False), Policy(on_error="fallback")])
def test_a_call_that_is_refused_is_not_counted(policy) -> None:
    q, k, v, r = draw()
    with pytest.raises(ValueError, match="expected q"):
        nsa_kernels.selection_attention(q, k[:, :1], v, r, policy=policy)
    with pytest.raises(TypeError, match="int32"):
        nsa_kernels.selection_attention(q, k, v, r.float(), policy=policy)
    assert report() == (0, {})


@pytest.mark.parametrize("min_len", ["abc", -5, 2.5, True, {"A": -1}, {"A": "many"}, {3: 4}])
def test_a_threshold_that_is_no_length_is_refused(min_len) -> None:
    with pytest.raises(ValueError, match="Policy: min_len must be"):
        Policy(min_len=min_len)


@pytest.mark.parametrize("name", ["enabled", "group_kernels", "force", "debug_compare"])
def test_a_switch_of_a_policy_is_true_or_false(name) -> None:
    with pytest.raises(ValueError, match=f"Policy: {name} must be True or False, got 'no'"):
        Policy(**{name: "no"})


def test_a_variable_that_is_empty_is_as_one_that_is_not_set() -> None:
    names = ("NSA_SEL_TRITON_MIN_L", "NSA_USE_TRITON_SEL", "NSA_DEBUG_SHAPES")
    policy = Policy.from_environment(dict.fromkeys(names, " "))
    assert policy.min_len == 0 and policy.enabled and not policy.debug_shapes
    for bad in ("abc", "-5", "2.5", "²"):
        with pytest.raises(ValueError, match="NSA_SEL_TRITON_MIN_L must be a whole number"):
            Policy.from_environment({"NSA_SEL_TRITON_MIN_L": bad})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"runtime: [", "is no YAML"),
        (b"\xff\xff", "is no YAML"),
        (b"runtime: {sel_triton_min_L: -5}", "must hold whole numbers >= 0 or null"),
        (b"runtime: {sel_triton_min_L: {3: 4}}", "must hold whole numbers >= 0 or null"),
        (b"runtime: {sel_triton_min_L: [4]}", "must hold whole numbers >= 0 or null"),
        (b"- 1", "no field runtime.sel_triton_min_L"),
        (b"", "no field runtime.sel_triton_min_L"),
    ],
)
def test_a_malformed_thresholds_file_is_named(tmp_path, content, said) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"thresholds.yaml.*{said}"):
        Policy.from_thresholds(path)


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
@pytest.mark.parametrize("q", [torch.zeros(()), torch.zeros(3), torch.zeros(1, 2, 1, 2, 0)])
def test_a_q_without_its_dimensions_is_refused(policy, q) -> None:
    _, k, v, r = draw(b=1, g=1)
    with pytest.raises(ValueError, match=r"expected q|D=0"):
        nsa_kernels.selection_attention(q.to(DEVICE), k, v, r, policy=policy)


@pytest.mark.parametrize("policy", [Policy(), Policy(enabled=False)])
@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf"), "big"])
def test_a_scale_that_is_no_positive_number_is_refused(policy, scale) -> None:
    with pytest.raises(ValueError, match="sm_scale must be a positive"):
        nsa_kernels.selection_attention(*draw(), policy=policy, sm_scale=scale)


def test_each_regime_has_a_threshold(monkeypatch) -> None:
    """Eagerly from Python, compiled, and captured, which a CPU cannot but be told."""
    args = draw()
    policy = Policy(min_len=0, by_regime={"queue": 100, "device": 50})
    nsa_kernels.selection_attention(*args, policy=policy, selected_len=70)
    assert report() == (0, {"below_min_L": 1})
    torch.ops.nsa_kernels.selection_attention(*args, None, 70, policy.handle)
    monkeypatch.setattr(gate, "mode", lambda q: Mode.CAPTURED)
    nsa_kernels.selection_attention(*args, policy=policy, selected_len=70)
    assert nsa_kernels.routing_report()["regimes"] == {
        "queue": {"kernel": 0, "fallback": 1},
        "device": {"kernel": 1, "fallback": 0},
        "graph": {"kernel": 1, "fallback": 0},
    }
    nsa_kernels.reset_routing_report()
    assert nsa_kernels.routing_report()["regimes"] == {}


@pytest.mark.parametrize(
    ("by_regime", "limits"),
    [
        (None, (7, 7, 7)),
        ({"queue": {"cpu": 30}}, (30, 7, 7)),
        ({"device": {"cpu": 20}, "graph": {"another GPU": 5}}, (7, 20, 20)),
        ({"device": 20, "graph": 10}, (7, 20, 10)),
        ({"queue": None, "graph": {"cpu": None}}, (1 << 62, 7, 1 << 62)),
    ],
)
def test_a_regime_without_a_threshold_takes_the_next(by_regime, limits) -> None:
    policy = Policy(min_len={"cpu": 7}, by_regime=by_regime)
    assert tuple(policy.limit(-1, regime) for regime in ("queue", "device", "graph")) == limits


def test_only_thresholds_of_regimes_are_taken() -> None:
    for bad in ({"eager": 1}, {"queue": -1}, {"queue": "many"}):
        with pytest.raises(ValueError, match="by_regime"):
            Policy(by_regime=bad)
    assert not Policy(min_len=0, by_regime={"queue": 1}).always
    assert Policy(min_len=0, by_regime={"queue": 0}).always
    copied = pickle.loads(pickle.dumps(Policy(by_regime={"queue": 64})))
    assert copied.by_regime == {"queue": 64}


def test_a_thresholds_file_holds_regimes_apart(tmp_path) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(
        "runtime: {sel_triton_min_L: {cpu: 64}, "
        "sel_triton_min_L_by_regime: {device: {cpu: 64}, queue: {cpu: null}}}\n"
    )
    policy = Policy.from_thresholds(path)
    assert policy.limit(-1, "graph") == policy.limit(-1, "device") == 64
    assert policy.limit(-1, "queue") == 1 << 62
    path.write_text("runtime: {sel_triton_min_L: 1, sel_triton_min_L_by_regime: {queue: many}}\n")
    with pytest.raises(ValueError, match="by_regime"):
        Policy.from_thresholds(path)
