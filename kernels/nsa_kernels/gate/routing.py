"""What the gate did: counters, one log line for each reason, the report."""

from __future__ import annotations

import logging
from typing import Any

from .policy import REASONS

log = logging.getLogger("nsa_kernels")

kernel_calls = 0
_fallbacks: dict[str, int] = {}
_errors: dict[str, str] = {}


def count_kernel() -> None:
    """Note one call that the kernel served."""
    global kernel_calls
    kernel_calls += 1


def count_fallback(reason: str, error: BaseException | None = None) -> None:
    """Note one call that packed SDPA served; the first of each reason is logged."""
    seen = _fallbacks.get(reason, 0)
    _fallbacks[reason] = seen + 1
    if error is not None:
        _errors[reason] = f"{type(error).__name__}: {error}"
    if seen == 0:
        detail = f" ({_errors[reason]})" if reason in _errors else ""
        log.warning("packed SDPA instead of the kernel, %s: %s%s", reason, REASONS[reason], detail)


def routing_report() -> dict[str, Any]:
    """How many calls of ``selection_attention`` the kernel served, and why others did not.

    Returns:
        ``kernel``: calls served by the kernel; ``fallback``: calls served by packed SDPA;
        ``reasons``: {reason: calls}; ``texts``: {reason: sentence}; ``errors``: the last error of
        a reason. Calls inside a CUDA graph count once, when captured. A call compiled by
        torch.compile counts each time it runs, but one that needs a gradient is not counted there.
    """
    return {
        "kernel": kernel_calls,
        "fallback": sum(_fallbacks.values()),
        "reasons": dict(_fallbacks),
        "texts": {reason: REASONS[reason] for reason in _fallbacks},
        "errors": dict(_errors),
    }


def reset_routing_report() -> None:
    """Forget all counts; the next fallback of each reason is logged again."""
    global kernel_calls
    kernel_calls = 0
    _fallbacks.clear()
    _errors.clear()
