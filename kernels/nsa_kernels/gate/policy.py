"""The settings that decide between the kernel and packed SDPA (``sdpa.py``), and the decision."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from numbers import Integral
from pathlib import Path
from typing import Literal

import torch

from ..jit.compat import CPU_ALLOWED
from ..launch.checks import DTYPES, MAX_DIM, MIN_DIM

REASONS: dict[str, str] = {
    "disabled": "the policy switches the kernel off",
    "group_kernels_off": "the policy switches off the kernels that take all heads at once",
    "never_faster": "the thresholds hold no length for this GPU from which the kernel is faster",
    "below_min_L": "the selected length is below the threshold for this GPU",
    "not_cuda": "the tensors are not on a CUDA device",
    "dtype": "the kernel takes float16, bfloat16 and float32, the same for q, k and v",
    "head_dim": f"the kernel takes head dims from {MIN_DIM} to {MAX_DIM}",
    "kernel_error": 'the kernel failed and the policy says on_error="fallback"',
}
"""Every reason for which packed SDPA is used instead of the kernel."""
_policies: list[Policy] = []


_NEVER = 1 << 62
_DEBUG = ("debug_timing", "debug_compare", "debug_shapes")


REGIMES: dict[str, tuple[str, ...]] = {
    "queue": (),
    "device": (),
    "graph": ("device",),
}
"""How a call is made: from Python (``queue``), compiled (``device``), or in a capture (``graph``).
If a regime has no threshold, the regimes in its tuple are tried in turn, and then ``min_len``."""


def _is_threshold(value: object) -> bool:
    """Return whether a value is a length, None (never), or a mapping from GPU names to these."""
    if isinstance(value, Mapping):
        return all(isinstance(k, str) and _is_length(v) for k, v in value.items())
    return _is_length(value)


def _is_length(value: object) -> bool:
    return value is None or (
        isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= 0
    )


@dataclass(frozen=True, eq=False)
class Policy:
    """Settings of ``selection_attention``.

    Attributes:
        enabled: False means that the kernel is never used.
        min_len: smallest selected length at which the kernel is used: one number, or one for each
            GPU name as CUDA reports it. None means never, also for a GPU that is not listed.
        by_regime: thresholds of some regimes (``REGIMES``), which replace ``min_len`` there. Calls
            from Python need a higher threshold than a graph if the host limits their speed.
        group_kernels: False avoids kernels that take all heads of a group at once. All kernels for
            ranges take them at once, so packed SDPA is used instead.
        force: use the kernel whatever the thresholds say.
        on_error: "raise" lets an error in the kernel through; "fallback" counts it, logs the first
            one and uses packed SDPA.
        debug_timing, debug_compare, debug_shapes: log the time of each call, its largest
            difference from packed SDPA, or each new shape. The first two wait for the device.
    """

    enabled: bool = True
    min_len: int | Mapping[str, int | None] | None = 0
    group_kernels: bool = True
    force: bool = False
    on_error: Literal["raise", "fallback"] = "raise"
    debug_timing: bool = False
    debug_compare: bool = False
    debug_shapes: bool = False
    by_regime: Mapping[str, int | Mapping[str, int | None] | None] | None = None
    handle: int = field(init=False, repr=False, default=-1)
    # These fields are computed once, since ``choose`` reads them in every call.
    off: str | None = field(init=False, repr=False, default=None)
    debug: bool = field(init=False, repr=False, default=False)
    plain: bool = field(init=False, repr=False, default=True)
    always: bool = field(init=False, repr=False, default=True)
    _limits: dict[tuple[int, str], int] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("enabled", "group_kernels", "force", *_DEBUG):
            if not isinstance(getattr(self, name), bool):
                raise ValueError(
                    f"Policy: {name} must be True or False, got {getattr(self, name)!r}"
                )
        if not _is_threshold(self.min_len):
            raise ValueError(
                "Policy: min_len must be a whole number >= 0, None for never, or a mapping from "
                f"GPU names to these; got {self.min_len!r}"
            )
        by_regime = self.by_regime or {}
        if not (by_regime.keys() <= REGIMES.keys() and all(map(_is_threshold, by_regime.values()))):
            raise ValueError(
                f"Policy: by_regime must hold thresholds for {', '.join(REGIMES)}; "
                f"got {by_regime!r}"
            )
        if self.on_error not in ("raise", "fallback"):
            raise ValueError(
                f'Policy: on_error must be "raise" or "fallback", got {self.on_error!r}'
            )
        off = None if self.enabled else "disabled"
        if off is None and not self.group_kernels:
            off = "group_kernels_off"
        debug = self.debug_timing or self.debug_compare or self.debug_shapes
        object.__setattr__(self, "off", off)
        object.__setattr__(self, "debug", debug)
        object.__setattr__(self, "plain", not debug and self.on_error == "raise")
        zero = all(value == 0 for value in (self.min_len, *by_regime.values()))
        object.__setattr__(self, "always", self.force or zero)
        # The operator takes a policy as a number, since its schema has no type for objects.
        object.__setattr__(self, "handle", len(_policies))
        _policies.append(self)

    def __reduce__(self) -> tuple[type[Policy], tuple[object, ...]]:
        # A handle is an index into this process's list, so a copy needs a handle of its own.
        return type(self), tuple(getattr(self, f.name) for f in fields(self) if f.init)

    def limit(self, device_index: int, regime: str) -> int:
        """Return the threshold on a device (-1: the CPU) in a regime. The result is cached."""
        limit = self._limits.get((device_index, regime))
        if limit is None:
            name = torch.cuda.get_device_name(device_index) if device_index >= 0 else "cpu"
            value = self._threshold(name, regime)
            limit = _NEVER if value is None else int(value)
            self._limits[device_index, regime] = limit
        return limit

    def _threshold(self, gpu: str, regime: str) -> int | None:
        """Return the first threshold for this GPU, in the order of ``REGIMES``. None: never."""
        for name in (regime, *REGIMES[regime]):
            if self.by_regime is None or name not in self.by_regime:
                continue
            value = self.by_regime[name]
            if not isinstance(value, Mapping):
                return value
            if gpu in value:
                return value[gpu]
        return self.min_len.get(gpu) if isinstance(self.min_len, Mapping) else self.min_len

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] | None = None) -> Policy:
        """Return the policy that the ``NSA_*`` variables describe.

        These are ``NSA_USE_TRITON_SEL``, ``NSA_SEL_TRITON_MIN_L``, ``NSA_SEL_TRITON_GROUP``,
        ``NSA_TRITON_SEL_FORCE``, ``NSA_DEBUG_TIMING``, ``NSA_DEBUG_COMPARE``, ``NSA_DEBUG_SHAPES``.
        ``NSA_SEL_TRITON_MIN_L`` is a whole number. All others are 0/1, true/false, yes/no or
        on/off. An empty variable counts as not set.

        Raises:
            ValueError: a variable has another value.
        """
        env = os.environ if environ is None else environ
        text = env.get("NSA_SEL_TRITON_MIN_L", "").strip() or "0"
        if not (text.isascii() and text.isdigit()):
            raise ValueError(f"NSA_SEL_TRITON_MIN_L must be a whole number >= 0, got {text!r}")
        return cls(
            enabled=_flag(env, "NSA_USE_TRITON_SEL", True),
            min_len=int(text),
            group_kernels=_flag(env, "NSA_SEL_TRITON_GROUP", True),
            force=_flag(env, "NSA_TRITON_SEL_FORCE", False),
            debug_timing=_flag(env, "NSA_DEBUG_TIMING", False),
            debug_compare=_flag(env, "NSA_DEBUG_COMPARE", False),
            debug_shapes=_flag(env, "NSA_DEBUG_SHAPES", False),
        )

    @classmethod
    def from_thresholds(cls, path: str | Path, base: Policy | None = None) -> Policy:
        """Return ``base`` (default: the environment's policy) with thresholds that nsabench wrote.

        The file's ``runtime.sel_triton_min_L`` is a number, null (never), or a mapping from GPU
        name to one of these. ``runtime.sel_triton_min_L_by_regime`` is optional. It holds such a
        value for each regime that was measured.

        Raises:
            ImportError: PyYAML is not installed.
            OSError: the file cannot be read.
            ValueError: the field is missing, or its value is of another kind.
        """
        import yaml

        try:
            content = yaml.safe_load(Path(path).read_bytes())
        except yaml.YAMLError as error:
            raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
        runtime = content.get("runtime") if isinstance(content, dict) else None
        if not isinstance(runtime, dict) or "sel_triton_min_L" not in runtime:
            raise ValueError(f"{path}: no field runtime.sel_triton_min_L; run nsabench threshold")
        value = runtime["sel_triton_min_L"]
        if not _is_threshold(value):
            raise ValueError(
                f"{path}: runtime.sel_triton_min_L must hold whole numbers >= 0 or null, alone or "
                f"by the names of GPUs; got {value!r}"
            )
        by_regime = runtime.get("sel_triton_min_L_by_regime")
        if by_regime is not None and not (
            isinstance(by_regime, dict)
            and by_regime.keys() <= REGIMES.keys()
            and all(map(_is_threshold, by_regime.values()))
        ):
            raise ValueError(
                f"{path}: runtime.sel_triton_min_L_by_regime must hold thresholds for "
                f"{', '.join(REGIMES)}; got {by_regime!r}"
            )
        return replace(base or default_policy(), min_len=value, by_regime=by_regime)


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if text == "":
        return default
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{name} must be 0 or 1, got {env[name]!r}")


@functools.lru_cache(maxsize=1)
def default_policy() -> Policy:
    """Return the environment's policy, which is read once in each process."""
    return Policy.from_environment()


def by_handle(handle: int) -> Policy:
    """Return the policy with this ``handle``; -1 is the default policy."""
    return default_policy() if handle < 0 else _policies[handle]


def choose(
    policy: Policy,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    selected_len: int,
    regime: str = "queue",
) -> str | None:
    """Return None for the kernel, or the reason (a key of ``REASONS``) for packed SDPA.

    ``regime`` is a key of ``REGIMES``. Only metadata is read, so nothing waits for the device.
    """
    if policy.off is not None:
        return policy.off
    device = q.get_device()
    if device < 0 and not CPU_ALLOWED:
        return "not_cuda"
    if k.get_device() != device or v.get_device() != device:
        raise ValueError(
            f"selection_attention: q, k and v must be on one device; "
            f"got {q.device}, {k.device}, {v.device}"
        )
    dtype = q.dtype
    if k.dtype is not dtype or v.dtype is not dtype:
        raise TypeError(
            f"selection_attention: q, k and v must share one dtype; "
            f"got {q.dtype}, {k.dtype}, {v.dtype}"
        )
    if dtype not in DTYPES:
        return "dtype"
    if not (q.dim() and v.dim()):
        raise ValueError(
            "selection_attention: expected q [B,S,G,h,D] and v [B,G,S_kv,Dv]; "
            f"got {tuple(q.shape)}, {tuple(v.shape)}"
        )
    if not (MIN_DIM <= q.size(-1) <= MAX_DIM and MIN_DIM <= v.size(-1) <= MAX_DIM):
        return "head_dim"
    if policy.always:
        return None
    limit = policy.limit(device, regime)
    if selected_len < limit:
        return "never_faster" if limit == _NEVER else "below_min_L"
    return None
