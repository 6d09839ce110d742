"""What a record says of a launch, and where the implementations run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch

from ...selection import chosen_config

DEVICES = ("cuda", "interpreter")


def config_of(op: str) -> Callable[..., str]:
    """What the library would launch with on these arguments, for the record."""

    def config(*tensors: torch.Tensor, sm_scale: float, **longest: int) -> str:
        (bound,) = longest.values() or (None,)
        return shown(asdict(chosen_config(op, *tensors, longest=bound)))

    return config


def shown(values: dict[str, Any]) -> str:
    return " ".join(f"{name}={value}" for name, value in values.items())
