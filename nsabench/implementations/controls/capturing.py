"""Some tricks need the host in every call, which a replayed CUDA graph does not have."""

from __future__ import annotations

import torch
from torch import Tensor

from nsabench import Unsupported


def decline_in_a_graph(tensor: Tensor) -> None:
    """Raises `Unsupported` while the call is being captured."""
    if tensor.is_cuda and torch.cuda.is_current_stream_capturing():
        raise Unsupported("a replayed graph calls no host code, so the trick cannot be played")
