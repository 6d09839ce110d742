"""What depends on sizes alone is made once and kept, as whoever calls an attention keeps it."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import wraps
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def memoised(most: int) -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Keep what the last `most` arguments gave. Other streams will use it, so it is waited for;
    what is made in a CUDA graph lies in the graph's own memory and is not kept."""

    def decorate(make: Callable[..., T]) -> Callable[..., T]:
        memory: dict[tuple[Hashable, ...], T] = {}

        @wraps(make)
        def get(*sizes: Any) -> T:
            if sizes in memory:
                return memory[sizes]
            value = make(*sizes)
            if torch.cuda.is_available():
                if torch.cuda.is_current_stream_capturing():
                    return value
                torch.cuda.synchronize()
            if len(memory) >= most:
                del memory[next(iter(memory))]
            memory[sizes] = value
            return value

        return get

    return decorate
