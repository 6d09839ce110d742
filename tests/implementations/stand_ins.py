"""What tests of baselines put in the place of a device."""

from __future__ import annotations

from types import ModuleType

import pytest
import torch
from torch.nn.attention import flex_attention as module

from nsabench.implementations.torch_attention import flash as _band
from nsabench.implementations.torch_attention import flex as _flex


def uncompiled_flex(monkeypatch: pytest.MonkeyPatch, baselines: ModuleType) -> None:
    """FlexAttention as it is uncompiled, which a CPU can run."""
    for where in (_flex, _band, baselines):
        monkeypatch.setattr(where, "flex", lambda: (module.flex_attention, module))


def blind_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    """To look at a value of a tensor is an error."""
    for method in ("item", "tolist", "__int__", "__bool__", "__index__"):
        monkeypatch.setattr(torch.Tensor, method, looked)


def looked(*_: object) -> None:
    raise AssertionError("the host looked at a value that is on the device")
