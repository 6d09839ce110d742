"""Some tricks need the host in every call, which a replayed CUDA graph does not have."""

from __future__ import annotations

import torch
from torch import Tensor

from nsabench import Unsupported


def captured(tensor: Tensor) -> bool:
    """Whether what is done on the device of this tensor is recorded, and not done."""
    return tensor.is_cuda and bool(torch.cuda.is_current_stream_capturing())


def decline_in_a_graph(tensor: Tensor) -> None:
    """Raises `Unsupported` while the call is being captured."""
    if captured(tensor):
        raise Unsupported("a replayed graph calls no host code, so the trick cannot be played")
