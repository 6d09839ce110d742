"""Chosen blocks as pages: a page table for each KV head is a selection."""

from __future__ import annotations

import torch
from torch import Tensor

from nsabench.implementations.torch_attention.memoised import memoised


def every_block_is_whole(keys: int, block_size: int, blocks: int) -> bool:
    """Whether a cache of so many keys has so many blocks, none of them cut off."""
    return keys % block_size == 0 and keys >= blocks * block_size


def pages_of_blocks(ranges: Tensor, pages: int, page_size: int) -> Tensor:
    """int32 [B,H,n]: the page of each block of ranges [B,H,n,2], where the caches of all heads lie
    one behind the other, each of `pages` pages."""
    b, h = ranges.shape[:2]
    first = first_of_heads(b * h, pages, ranges.device).view(b, h, 1)
    return ranges[..., 0] // page_size + first


@memoised(8)
def first_of_heads(heads: int, step: int, device: torch.device) -> Tensor:
    """int32 [heads]: where the cache of each begins, in steps."""
    return torch.arange(0, heads * step, step, dtype=torch.int32, device=device)
