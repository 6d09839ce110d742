"""Where the packed sequences of a batch begin and end, as it is and as it may be mistaken."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor


def sequences(tokens: int, cu: Tensor | None, device: torch.device) -> tuple[Tensor, Tensor]:
    """Of each token, where its sequence begins and ends: int64 [tokens] each."""
    if cu is None:
        none = torch.zeros(tokens, dtype=torch.int64, device=device)
        return none, none + tokens
    begins, ends = cu.long()[:-1], cu.long()[1:]
    lengths = ends - begins
    return torch.repeat_interleave(begins, lengths), torch.repeat_interleave(ends, lengths)


def moved(tokens: int, cu: Tensor, by: int) -> Tensor:
    """cu_seqlens whose sequences begin so many tokens later, but for the first."""
    cu = (cu + by).clamp(0, tokens)
    cu[0], cu[-1] = 0, tokens
    return cu


def moved_starts(tokens: int, cu: Tensor) -> Iterator[tuple[str, tuple[Tensor, Tensor]]]:
    """That sequences begin a token late or early, and what `sequences` says then."""
    for when, by in (("late", 1), ("early", -1)):
        text = f"has sequences begin one token {when}"
        yield text, sequences(tokens, moved(tokens, cu, by), cu.device)
