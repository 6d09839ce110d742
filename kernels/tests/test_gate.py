"""The gate: its choice, named fallbacks, report and settings."""

import copy
import logging
import pickle

import nsa_kernels
import pytest
import torch
from cases import DEVICE, doubled, make
from nsa_kernels import Policy
from nsa_kernels.gate import api as gate
from nsa_kernels.gate.policy import by_handle, choose
from nsa_kernels.launch.mode import Mode

OFF = Policy(enabled=False)


@pytest.fixture(autouse=True)
def _fresh_report():
    nsa_kernels.reset_routing_report()
    yield
    nsa_kernels.reset_routing_report()


def drawn(**sizes):
    sizes = {"b": 2, "t": 2, "hq": 6, "h": 2, "dv": 24, "n": 70, "spans": 3, **sizes}
    return make("selection_attention", **sizes)


def attend(case, policy=None, **options):
    return nsa_kernels.selection_attention(**case.tensors, policy=policy, **options)


def is_right(out, case):
    torch.testing.assert_close(
        out.double(), case.formula(**doubled(case.tensors)), atol=2e-5, rtol=1e-3
    )


def report():
    got = nsa_kernels.routing_report()
    assert got["fallback"] == sum(got["reasons"].values())
    return got["kernel"], got["reasons"]


def broken(*args, **kwargs):
    raise RuntimeError("no such kernel image")


@pytest.mark.parametrize("policy", [Policy(), OFF])
@pytest.mark.parametrize("hint", [None, 64])
def test_both_routes_match_the_formula_and_are_counted(policy, hint):
    case = drawn()
    out = attend(case, policy, selected_len=hint)
    is_right(out, case)
    assert out.is_contiguous() and (out[0, 0, 0] == 0).all()
    assert report() == ((1, {}) if policy.enabled else (0, {"disabled": 1}))


@pytest.mark.parametrize(
    ("policy", "change", "reason"),
    [
        (OFF, {}, "disabled"),
        (Policy(group_kernels=False), {}, "group_kernels_off"),
        (Policy(min_len=100), {}, "below_min_L"),
        (Policy(min_len=None), {}, "never_faster"),
        (Policy(min_len={"another GPU": 1}), {}, "never_faster"),
        (Policy(), {"dtype": torch.float64}, "dtype"),
        (Policy(), {"d": 8}, "head_dim"),
    ],
)
def test_each_fallback_has_a_name_and_is_logged_once(policy, change, reason, caplog):
    case = drawn(**change)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        for _ in range(3):
            attend(case, policy)
    assert report() == (0, {reason: 3})
    assert [reason in r.message for r in caplog.records] == [True]
    assert reason in nsa_kernels.routing_report()["texts"]


def test_threshold_force_and_hint():
    q, k, v, _ = drawn().tensors.values()
    for policy, reason in (
        (Policy(min_len=70), None),
        (Policy(min_len=71), "below_min_L"),
        (Policy(min_len=71, force=True), None),
        (Policy(min_len=None, force=True), None),
    ):
        assert choose(policy, q, k, v, 70) == reason


@pytest.mark.parametrize("launcher", ["launch_ranges", "differentiable_ranges"])
def test_an_error_in_the_kernel_is_an_error(launcher, monkeypatch):
    """A call that wants a gradient goes through the operator."""
    monkeypatch.setattr(gate, launcher, broken)
    case, wanted = drawn(), launcher == "differentiable_ranges"
    if wanted:
        case.tensors["q"] = torch.nn.Parameter(case.tensors["q"])
    with pytest.raises(RuntimeError, match="kernel image"):
        attend(case)
    nsa_kernels.reset_routing_report()
    out = attend(case, Policy(on_error="fallback"))
    is_right(out.detach(), case)
    assert report() == (0, {"kernel_error": 1}) and out.requires_grad == wanted
    assert "kernel image" in nsa_kernels.routing_report()["errors"]["kernel_error"]


@pytest.mark.parametrize("policy", [Policy(), OFF, Policy(on_error="fallback")])
def test_a_call_that_is_refused_neither_falls_back_nor_counts(policy):
    for key, change, error, message in (
        ("k", lambda x: x[:, :1], ValueError, "expected q"),
        ("ranges", torch.Tensor.float, TypeError, "int32"),
        ("q", torch.Tensor.half, TypeError, "must share one dtype"),
    ):
        case = drawn()
        case.tensors[key] = change(case.tensors[key])
        with pytest.raises(error, match=message):
            attend(case, policy)
    assert report() == (0, {})


def test_environment_is_read():
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
    names = ("NSA_SEL_TRITON_MIN_L", "NSA_USE_TRITON_SEL", "NSA_DEBUG_SHAPES")
    for empty in ({}, dict.fromkeys(names, " ")):
        policy = Policy.from_environment(empty)
        assert policy.min_len == 0 and policy.enabled and not policy.debug_shapes
    with pytest.raises(ValueError, match="NSA_USE_TRITON_SEL"):
        Policy.from_environment({"NSA_USE_TRITON_SEL": "maybe"})
    for bad in ("abc", "-1", "2.5", "²"):
        with pytest.raises(ValueError, match="NSA_SEL_TRITON_MIN_L must be a whole number"):
            Policy.from_environment({"NSA_SEL_TRITON_MIN_L": bad})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        *(({"min_len": x}, "min_len must be") for x in ("abc", -5, 2.5, True, {"A": -1}, {3: 4})),
        *(({"by_regime": x}, "by_regime") for x in ({"eager": 1}, {"queue": -1}, {"queue": "x"})),
        *(
            ({name: "no"}, f"{name} must be True or False, got 'no'")
            for name in ("enabled", "group_kernels", "force", "debug_compare")
        ),
        ({"on_error": "ignore"}, "on_error"),
    ],
)
def test_settings_of_a_policy_that_are_none_are_refused(settings, message):
    with pytest.raises(ValueError, match=f"Policy: .*{message}"):
        Policy(**settings)


BY_REGIME = """\
runtime:
  sel_triton_min_L: {cpu: 64}
  sel_triton_min_L_by_regime: {device: {cpu: 64}, queue: {cpu: null}}
"""


def test_a_thresholds_file_is_read(tmp_path):
    path = tmp_path / "thresholds.yaml"
    for text, want in (("256", 256), ("null", None), ("{A: 64, B: null}", {"A": 64, "B": None})):
        path.write_text(f"runtime: {{sel_triton_min_L: {text}}}\n")
        assert Policy.from_thresholds(path).min_len == want
    path.write_text(BY_REGIME)
    policy = Policy.from_thresholds(path)
    assert policy.limit(-1, "graph") == policy.limit(-1, "device") == 64
    assert policy.limit(-1, "queue") == 1 << 62


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"runtime: [", "not YAML"),
        (b"\xff\xff", "not YAML"),
        *(
            (b"runtime: {sel_triton_min_L: %s}" % x, "must hold whole numbers >= 0 or null")
            for x in (b"-5", b"{3: 4}", b"[4]", b"many", b"true")
        ),
        *((x, "no field runtime.sel_triton_min_L") for x in (b"- 1", b"", b"{}")),
        (
            b"runtime: {sel_triton_min_L: 1, sel_triton_min_L_by_regime: {queue: many}}",
            "by_regime must hold thresholds",
        ),
    ],
)
def test_a_malformed_thresholds_file_is_named(tmp_path, content, message):
    path = tmp_path / "thresholds.yaml"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"thresholds.yaml.*{message}"):
        Policy.from_thresholds(path)


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
def test_a_regime_without_a_threshold_takes_the_next(by_regime, limits):
    policy = Policy(min_len={"cpu": 7}, by_regime=by_regime)
    assert tuple(policy.limit(-1, regime) for regime in ("queue", "device", "graph")) == limits


def test_each_regime_has_a_threshold(monkeypatch):
    """The calls are eager, as in compiled code, and as in a captured graph."""
    case, policy = drawn(), Policy(min_len=0, by_regime={"queue": 100, "device": 50})
    attend(case, policy, selected_len=70)
    assert report() == (0, {"below_min_L": 1})
    operator = torch.ops.nsa_kernels.selection_attention
    operator(*case.tensors.values(), None, 70, policy.handle)
    monkeypatch.setattr(gate, "mode", lambda q: Mode.CAPTURED)
    attend(case, policy, selected_len=70)
    assert nsa_kernels.routing_report()["regimes"] == {
        "queue": {"kernel": 0, "fallback": 1},
        "device": {"kernel": 1, "fallback": 0},
        "graph": {"kernel": 1, "fallback": 0},
    }
    nsa_kernels.reset_routing_report()
    assert nsa_kernels.routing_report()["regimes"] == {}


def test_a_copied_policy_has_a_handle_of_its_own():
    """A handle is an index into a list of its process."""
    policy = Policy(enabled=False, min_len={"A": 64}, by_regime={"queue": 64}, debug_shapes=True)
    for other in (pickle.loads(pickle.dumps(policy)), copy.deepcopy(policy)):
        assert other.handle != policy.handle and by_handle(other.handle) is other
        assert repr(other) == repr(policy) and other.off == "disabled" and not other.plain
    assert not Policy(min_len=0, by_regime={"queue": 1}).always
    assert Policy(min_len=0, by_regime={"queue": 0}).always


def test_debug_settings_log_and_change_nothing(caplog):
    """A length hint does not limit the keys that the kernel and the debug comparison read."""
    case, policy = drawn(), Policy(debug_compare=True, debug_shapes=True)
    want = attend(case, selected_len=1)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        assert torch.equal(attend(case, policy, selected_len=1), want)
        case.tensors["q"] = torch.nn.Parameter(case.tensors["q"])
        attend(case, policy)
    texts = [r.message for r in caplog.records]
    assert sum("shapes" in t for t in texts) == 1 and sum("difference" in t for t in texts) == 2


def test_a_comparison_that_fails_is_logged_and_not_raised(monkeypatch, caplog):
    monkeypatch.setattr(gate, "packed_sdpa", broken)
    with caplog.at_level(logging.WARNING, logger="nsa_kernels"):
        attend(drawn(), Policy(debug_compare=True))
    assert "no such kernel image" in caplog.text


@pytest.mark.parametrize("hint", [0, 1])
def test_a_hint_that_is_too_small_is_an_error_in_the_fallback(hint):
    if DEVICE == "cuda":
        pytest.skip("a failed device assertion would end the CUDA context")
    with pytest.raises(RuntimeError):
        nsa_kernels.packed_sdpa(**drawn().tensors, selected_len=hint)


def test_nothing_selected_of_large_values_is_zero_with_zero_gradients():
    """The sum of the values is infinite in float16, and 0 times that is NaN."""
    case = drawn(dtype=torch.float16)
    leaves = {key: (case.tensors[key].abs() * 3e4).clamp(max=6e4) for key in case.leaves}
    leaves = {key: x.requires_grad_() for key, x in leaves.items()}
    r = case.tensors["ranges"]
    for call in ({"ranges": r[..., :0, :]}, {"ranges": torch.zeros_like(r), "selected_len": 0}):
        out = nsa_kernels.packed_sdpa(**leaves, **call)
        grads = torch.autograd.grad(out.float().sum(), [*leaves.values()])
        assert all((x == 0).all() for x in (out, *grads))


def test_chosen_config_is_reported():
    tensors = drawn().tensors.values()
    config = nsa_kernels.chosen_config("selection_ranges", *tensors)
    assert config.block_l >= 16 and config.splits >= 1
    with pytest.raises(ValueError, match=r"chosen_config: .*selection_blocks"):
        nsa_kernels.chosen_config("selection_blocks", *tensors)
    assert report() == (0, {})
