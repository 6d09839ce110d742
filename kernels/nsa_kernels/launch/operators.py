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

    The annotations become the schema. They are resolved here, because torch 2.4 does not read
    annotations that are strings.
    """
    if call is None:
        return partial(operator, name)
    innermost = inspect.unwrap(call)
    innermost.__annotations__ = typing.get_type_hints(innermost)
    return torch.library.custom_op(name, call, mutates_args=())
