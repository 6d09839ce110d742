"""Describe launches for records, and name the devices of the implementations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from ...selection import chosen_config

DEVICES = ("cuda", "interpreter")


def config_of(op: str) -> Callable[..., str]:
    """Return a function that describes, for the record, the configuration of a launch of ``op``."""

    def config(*tensors: torch.Tensor, sm_scale: float, **longest: int) -> str:
        (bound,) = longest.values() or (None,)
        return shown(asdict(chosen_config(op, *tensors, longest=bound)))

    return config


def shown(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
