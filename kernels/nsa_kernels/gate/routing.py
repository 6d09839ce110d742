"""Record which calls of ``selection_attention`` took the kernel, which the fallback, and why."""

from __future__ import annotations

import logging
from typing import Any

from .policy import REASONS, REGIMES

log = logging.getLogger("nsa_kernels")

_kernel_calls = dict.fromkeys(REGIMES, 0)
_fallback_calls = dict.fromkeys(REGIMES, 0)
_fallbacks: dict[str, int] = {}
_errors: dict[str, str] = {}


def count_kernel(regime: str) -> None:
    _kernel_calls[regime] += 1


def count_fallback(reason: str, regime: str, error: BaseException | None = None) -> None:
    """Count a call that the fallback, packed SDPA, served. Log the first call of each reason."""
    _fallback_calls[regime] += 1
    seen = _fallbacks.get(reason, 0)
    _fallbacks[reason] = seen + 1
    if error is not None:
        _errors[reason] = f"{type(error).__name__}: {error}"
    if seen == 0:
        detail = f" ({_errors[reason]})" if reason in _errors else ""
        log.warning("packed SDPA instead of the kernel, %s: %s%s", reason, REASONS[reason], detail)


def routing_report() -> dict[str, Any]:
    """Return how many calls of ``selection_attention`` the kernel and packed SDPA served, and why.

    Returns:
        - ``kernel``: calls served by the kernel; ``fallback``: calls served by packed SDPA;
        - ``reasons``: {reason: calls}; ``texts``: {reason: sentence};
        - ``errors``: {reason: its last error};
        - ``regimes``: {regime: {``kernel``: calls, ``fallback``: calls}}. A regime is ``graph`` for
        calls captured in a CUDA graph, ``device`` for others in a program of torch.compile, and
        ``queue`` for all further calls.

        A call in a CUDA graph counts once, when it is captured. A call that torch.compile compiled
        counts each time it runs, or never if it needs a gradient.
    """
    return {
        "kernel": sum(_kernel_calls.values()),
        "fallback": sum(_fallbacks.values()),
        "reasons": dict(_fallbacks),
        "texts": {reason: REASONS[reason] for reason in _fallbacks},
        "errors": dict(_errors),
        "regimes": {
            regime: {"kernel": _kernel_calls[regime], "fallback": _fallback_calls[regime]}
            for regime in REGIMES
            if _kernel_calls[regime] or _fallback_calls[regime]
        },
    }


def reset_routing_report() -> None:
    """Forget all counts; the next fallback of each reason is logged again."""
    for calls in (_kernel_calls, _fallback_calls):
        calls.update(dict.fromkeys(REGIMES, 0))
    _fallbacks.clear()
    _errors.clear()
