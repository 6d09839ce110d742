"""``selection_attention``: a policy chooses the kernel or packed SDPA, and a report counts both."""

from __future__ import annotations

from .api import selection_attention
from .policy import REASONS, Policy, default_policy
from .routing import reset_routing_report, routing_report
from .sdpa import packed_sdpa

__all__ = [
    "REASONS",
    "Policy",
    "default_policy",
    "packed_sdpa",
    "reset_routing_report",
    "routing_report",
    "selection_attention",
]
