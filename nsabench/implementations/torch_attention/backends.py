"""What `scaled_dot_product_attention` and others are told, from torch 2.2 on."""

from __future__ import annotations

import inspect
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import torch
from torch.nn.functional import scaled_dot_product_attention

from nsabench import Unsupported

try:
    from torch.nn.attention import SDPBackend, sdpa_kernel
except ImportError:  # torch < 2.3
    _FLAGS = {"flash": "enable_flash", "efficient": "enable_mem_efficient", "math": "enable_math"}

    def only(name: str) -> AbstractContextManager[None]:
        """Attention by this backend alone."""
        if name not in _FLAGS:
            raise Unsupported(f"torch {torch.__version__} has no {name} attention")
        chosen = {flag: of == name for of, flag in _FLAGS.items()}
        context: AbstractContextManager[None] = torch.backends.cuda.sdp_kernel(**chosen)
        return context

else:
    _BY_NAME = {
        "flash": SDPBackend.FLASH_ATTENTION,
        "efficient": SDPBackend.EFFICIENT_ATTENTION,
        "cudnn": SDPBackend.CUDNN_ATTENTION,
        "math": SDPBackend.MATH,
    }

    def only(name: str) -> AbstractContextManager[None]:
        """Attention by this backend alone."""
        context: AbstractContextManager[None] = sdpa_kernel(_BY_NAME[name])
        return context


BACKENDS = ("flash", "efficient", "cudnn", "math")


def _shares_heads() -> bool:
    one = torch.ones(1, 1, 1, 8)
    try:
        scaled_dot_product_attention(one, one, one, enable_gqa=True)
    except TypeError:  # torch < 2.5
        return False
    return True


SHARES_HEADS = _shares_heads()


def sharing(shared: bool = True) -> dict[str, bool]:
    """The option with which a group of heads shares K and V, if it does.

    Raises `Unsupported` where torch has none.
    """
    if shared and not SHARES_HEADS:
        raise Unsupported(f"torch {torch.__version__} cannot share K and V in a group of heads")
    return {"enable_gqa": True} if shared else {}


@cache
def accepts(function: Any, *names: str) -> bool:
    """Whether a function has all these parameters."""
    return set(names) <= set(inspect.signature(function).parameters)
