"""Operators of torch, which tracing sees as one call each."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from functools import partial
from typing import Any

import torch


def operator(name: str, call: Callable[..., Any] | None = None) -> Any:
    """``torch.library.custom_op`` of a call that writes to none of its arguments; without the call,
    a decorator for it.

    Its schema is that of the annotations. torch 2.4 reads none that are texts, as they all are
    under ``from __future__ import annotations``, so they are given as what they name.
    """
    if call is None:
        return partial(operator, name)
    innermost = inspect.unwrap(call)
    innermost.__annotations__ = typing.get_type_hints(innermost)
    return torch.library.custom_op(name, call, mutates_args=())
