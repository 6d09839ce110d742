"""``selection_attention``, which a model calls, and its custom operator.

In eager mode the kernel is launched directly, since torch's dispatcher is slow. Under torch.compile
a call without a gradient becomes the operator ``nsa_kernels::selection_attention``, which chooses
kernel or fallback when it runs. With a gradient, the choice is made while tracing.
"""

from __future__ import annotations

from typing import Any

import torch

from ..launch.checks import check_scale, check_transforms, check_whole
from ..launch.mode import Mode, mode, traced
from ..selection.ranges.api import differentiable_ranges
from ..selection.ranges.forward import launch_ranges
from ..selection.ranges.spans import check_ranges
from . import routing
from .policy import Policy, by_handle, choose, default_policy
from .sdpa import packed_sdpa

OP = "selection_attention"
_shapes_seen: set[tuple[object, ...]] = set()


_TRAINING = Policy(force=True)


def selection_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    *,
    sm_scale: float | None = None,
    policy: Policy | None = None,
    selected_len: int | None = None,
) -> torch.Tensor:
    """Attend with each row's h queries to the union of the row's spans.

    A policy chooses the kernel or the fallback, which is ``packed_sdpa``.

    Args:
        q: [B, S, G, h, D]; the kernel takes float16, bfloat16 and float32.
        k: [B, G, S_kv, D]. v: [B, G, S_kv, Dv].
        ranges: int32 or int64 [B, S, G, n, 2] or [S, G, n, 2], as ``selection_ranges``.
        sm_scale: factor on q.k; 1/sqrt(D) when None.
        policy: when to use the kernel; None: ``default_policy()``. Its threshold depends on the
            regime: ``graph`` in a capture, ``device`` under torch.compile, else ``queue``.
        selected_len: upper bound of the keys that a row selects (in NSA, n times the block size).
            The kernel is used if this bound reaches the policy's threshold. The fallback copies
            this many keys for each row, and fails if a row selects more. None: S_kv, a safe bound.

    Returns:
        out [B, S, G, h, Dv] in q's dtype, contiguous; 0 where a row selects nothing.

    Raises:
        TypeError, ValueError: the inputs are wrong.
        Other errors of the kernel are raised unless the policy says ``on_error="fallback"``.
    """
    if selected_len is not None:
        check_whole(OP, "selected_len", selected_len, 0)
    check_scale(OP, sm_scale)
    if traced(q):
        handle = -1 if policy is None else policy.handle
        if _needs_grad(q, k, v):
            # The graph needs one backward, so kernel or fallback is chosen now, for all lengths.
            always = _default_always() if policy is None else policy.off is None and policy.always
            if always and choose(_TRAINING, q, k, v, 0, "device") is None:
                return _launch(q, k, v, ranges, sm_scale, selected_len)
            return packed_sdpa(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
        out: torch.Tensor = torch.ops.nsa_kernels.selection_attention(
            q, k, v, ranges, sm_scale, selected_len, handle
        )
        return out
    check_transforms(OP, q, k, v)
    return _route(policy or default_policy(), q, k, v, ranges, sm_scale, selected_len)


def _default_always() -> bool:
    """Return whether the environment's policy uses the kernel at every length."""
    policy = default_policy()
    return policy.off is None and policy.always


# This line does what the decorator `torch.compiler.assume_constant_result` does. The decorator
# would import the compiler whenever this package is imported.
vars(_default_always)["_dynamo_marked_constant"] = True


def _needs_grad(*tensors: torch.Tensor) -> bool:
    return torch.is_grad_enabled() and any(t.requires_grad for t in tensors)


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
) -> torch.Tensor:
    if _needs_grad(q, k, v):
        out: torch.Tensor = differentiable_ranges(q, k, v, ranges, sm_scale, selected_len)[0]
        return out
    return launch_ranges(q, k, v, ranges, sm_scale, selected_len)[0]


def _route(
    policy: Policy,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    ranges: torch.Tensor,
    sm_scale: float | None,
    selected_len: int | None,
    *,
    compiled: bool = False,
) -> torch.Tensor:
    """Call the kernel or the fallback. ``compiled``: whether the call is in a compiled program."""
    if selected_len is not None:
        length = selected_len
    elif k.dim() == 4:
        length = k.shape[2]
    else:
        length = 0  # any value: kernel and fallback refuse keys that are not 4D
    regime = _regime(q, compiled=compiled)
    reason = choose(policy, q, k, v, length, regime)
    if reason is None:
        if policy.plain:
            out = _launch(q, k, v, ranges, sm_scale, selected_len)
            routing.count_kernel(regime)
            return out
        run = _debugged if policy.debug else _kernel
        return run(policy, regime, q, k, v, ranges, sm_scale, selected_len)
    out = packed_sdpa(q, k, v, ranges, sm_scale=sm_scale, selected_len=selected_len)
    routing.count_fallback(reason, regime)
    return out


def _regime(q: torch.Tensor, *, compiled: bool) -> str:
    """Return the regime of a call. It is ``graph`` in any capture, also of a compiled program."""
    made = mode(q)
    if made is Mode.CAPTURED:
        return "graph"
    return "device" if compiled or made is Mode.TRACED else "queue"


def _kernel(policy: Policy, regime: str, *call: Any) -> torch.Tensor:
    """Call the kernel. If it fails, raise or call packed SDPA, as the policy says."""
    failed = None
    if policy.on_error == "raise":
        out = _launch(*call)
    else:
        # Raise for wrong inputs, since packed SDPA would refuse them as well.
        check_ranges(*call[:4])
        try:
            out = _launch(*call)
        except RuntimeError as error:
            failed = error
            out = _packed(*call)
    # Count after the call, so that calls that raise are not counted.
    if failed is None:
        routing.count_kernel(regime)
    else:
        routing.count_fallback("kernel_error", regime, failed)
    return out


def _packed(*call: Any) -> torch.Tensor:
    *tensors, sm_scale, selected_len = call
    return packed_sdpa(*tensors, sm_scale=sm_scale, selected_len=selected_len)


def _debugged(policy: Policy, regime: str, *call: Any) -> torch.Tensor:
    """Call the kernel and log what the policy asks for. In a capture, only shapes are logged."""
    q = call[0]
    shapes = (*(tuple(x.shape) for x in call[:4]), q.dtype)
    if policy.debug_shapes and shapes not in _shapes_seen:
        _shapes_seen.add(shapes)
        routing.log.warning("shapes q %s k %s v %s ranges %s %s", *shapes)
    may_wait = mode(q) is Mode.EAGER
    if policy.debug_timing and q.is_cuda and may_wait:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        out = _kernel(policy, regime, *call)
        end.record()
        end.synchronize()
        routing.log.warning("selection_attention took %.4f ms", start.elapsed_time(end))
    else:
        out = _kernel(policy, regime, *call)
    if policy.debug_compare and may_wait:
        _compare(out, *call)
    return out


@torch.no_grad()
def _compare(out: torch.Tensor, *call: Any) -> None:
    """Log the largest difference from packed SDPA. If the comparison fails, the call does not."""
    *arguments, _ = call
    try:
        # No selected_len: for the kernel it is only a hint, and it may be too small.
        other = _packed(*arguments, None)
    except RuntimeError as error:  # most often, no memory for a copy of all keys
        routing.log.warning("packed SDPA failed, so nothing is compared: %s", error)
        return
    gap = (out.float() - other.float()).abs().max().item() if out.numel() else 0.0
    routing.log.warning("largest difference from packed SDPA %.3e", gap)


@torch.library.custom_op(
    "nsa_kernels::selection_attention",
    mutates_args=(),
    schema=(
        "(Tensor q, Tensor k, Tensor v, Tensor ranges, float? sm_scale, int? selected_len, "
        "int policy) -> Tensor"
    ),
)
def _operator(*call: Any) -> torch.Tensor:
    *arguments, handle = call
    return _route(by_handle(handle), *arguments, compiled=True)


@_operator.register_fake
def _(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: Any) -> torch.Tensor:
    b, s, g, h, _ = q.shape
    return q.new_empty((b, s, g, h, v.shape[-1]))
