"""What public libraries are called with, in plain PyTorch: each stand-in reads its arguments as the
library documents them, so that an adapter that hands over the wrong ones gives a wrong output."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """q [G,D], k [n,D], v [n,Dv]."""
    return (q @ k.T * scale).softmax(-1) @ v


def topk_sparse_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    topk_idx: Tensor,
    block_size: int,
    cu_seqlens: Tensor,
    softmax_scale: float,
) -> Tensor:
    """XunhaoLai's and FSA's: a row is read from its first slot, as many as are there."""
    assert topk_idx.dtype == cu_seqlens.dtype == torch.int32 and topk_idx.is_contiguous()
    out = torch.zeros_like(q)
    group = q.shape[1] // k.shape[1]
    for first, end in zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist(), strict=True):
        for t in range(first, end):
            for h in range(k.shape[1]):
                own = (t - first) // block_size
                row = topk_idx[h, t]
                blocks = row[: int(((row >= 0) & (row <= own)).sum())].long()
                keys = (blocks[:, None] * block_size + torch.arange(block_size)).flatten()
                keys = keys[keys <= t - first] + first
                heads = slice(h * group, (h + 1) * group)
                out[t, heads] = attend(q[t, heads], k[keys, h], v[keys, h], softmax_scale)
    return out


def selection_attention_wrapper(
    *,
    q_tensor: Tensor,
    k_tensor: Tensor,
    v_tensor: Tensor,
    block_indices_tensor: Tensor,
    block_counts_tensor: Tensor,
    cum_seqlen_q_tensor: Tensor,
    cum_seqlen_k_tensor: Tensor,
    block_size: int,
    scale_softmax: float,
    max_s_q: int,
    max_s_k: int,
    is_causal: bool,
) -> dict[str, Tensor]:
    """cuDNN's: the first `block_counts` slots of a row, and every index is one of a block."""
    assert is_causal and block_indices_tensor.min() >= 0 and max_s_q == max_s_k
    slots = torch.arange(block_indices_tensor.shape[-1])
    chosen = block_indices_tensor.where(slots < block_counts_tensor.unsqueeze(-1), -1)
    by_head = chosen.transpose(0, 1).contiguous()
    tensors = (q_tensor, k_tensor, v_tensor, by_head, block_size, cum_seqlen_q_tensor)
    return {"o_tensor": topk_sparse_attention(*tensors, scale_softmax)}


class PagedDecode:
    """FlashInfer's `BatchDecodeWithPagedKVCacheWrapper`, NHD."""

    def __init__(
        self,
        float_workspace_buffer: Tensor,
        kv_layout: str = "NHD",
        use_cuda_graph: bool = False,
        use_tensor_cores: bool = False,
        paged_kv_indptr_buffer: Tensor | None = None,
        paged_kv_indices_buffer: Tensor | None = None,
        paged_kv_last_page_len_buffer: Tensor | None = None,
    ) -> None:
        assert kv_layout == "NHD"
        given = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        assert all((x is not None) == use_cuda_graph for x in given)
        self.buffers = given if use_cuda_graph else None

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        last_page_len: Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        page_size: int,
        q_data_type: torch.dtype,
        sm_scale: float,
    ) -> None:
        assert all(x.dtype == torch.int32 for x in (indptr, indices, last_page_len))
        assert len(indptr) == len(last_page_len) + 1 and int(indptr[-1]) == len(indices)
        if self.buffers is None:
            self.read = (indptr.clone(), indices.clone(), last_page_len.clone())
        else:
            for buffer, x in zip(self.buffers, (indptr, indices, last_page_len), strict=True):
                buffer.copy_(x)
            self.read = self.buffers
        self.sizes = SimpleNamespace(
            heads=num_qo_heads, of=num_kv_heads, width=head_dim, page=page_size, scale=sm_scale
        )

    def run(self, q: Tensor, paged_kv_cache: tuple[Tensor, Tensor]) -> Tensor:
        indptr, indices, last = (x.tolist() for x in self.read)
        keys, values = paged_kv_cache
        assert q.shape[1:] == (self.sizes.heads, self.sizes.width)
        assert keys.stride() == values.stride() and keys.shape[1:3] == (self.sizes.page, 1)
        out = torch.empty_like(q)
        for row in range(len(q)):
            pages = indices[indptr[row] : indptr[row + 1]]
            pieces = [self.page(x, pages, last[row]) for x in (keys, values)]
            out[row] = attend(q[row], *pieces, self.sizes.scale)
        return out

    def page(self, x: Tensor, pages: list[int], last: int) -> Tensor:
        """The keys of a row; what lies behind the last one is not read."""
        size, (page, token, _, _) = self.sizes.page, x.stride()
        held = [size] * (len(pages) - 1) + [last]
        flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        places = [
            x.storage_offset() + p * page + torch.arange(n) * token
            for p, n in zip(pages, held, strict=True)
        ]
        return flat[torch.cat(places)[:, None] + torch.arange(x.shape[-1])]


class BlockSparse:
    """FlashInfer's `BlockSparseAttentionWrapper` with a mask."""

    def __init__(self, float_workspace_buffer: Tensor, backend: str = "auto") -> None:
        assert backend == "fa2"

    def plan(
        self,
        indptr: Tensor,
        indices: Tensor,
        M: int,
        N: int,
        R: int,
        C: int,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim: int,
        mask: Tensor,
        q_data_type: torch.dtype,
        o_data_type: torch.dtype,
        sm_scale: float,
    ) -> None:
        assert R == 1 and num_kv_heads == 1 and len(indptr) == M + 1 and N % C == 0
        assert mask.shape == (len(indices), R, C) and mask.dtype == torch.bool
        self.read, self.size, self.scale = (indptr, indices, mask), C, sm_scale

    def run(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        indptr, indices, mask = self.read
        out = torch.empty(q.shape, dtype=q.dtype)
        for row in range(len(q)):
            some = slice(int(indptr[row]), int(indptr[row + 1]))
            keys = indices[some].long()[:, None] * self.size + torch.arange(self.size)
            keys = keys[mask[some, 0]]
            out[row] = attend(q[row], k[keys, 0], v[keys, 0], self.scale)
        return out


def flash_attn_varlen_func(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    seqused_k: Tensor,
    page_table: Tensor,
    softmax_scale: float,
) -> tuple[Tensor, None]:
    """FlashAttention-4's over pages: q [n,1,G,D], k [pages,page,1,D]."""
    assert page_table.dtype == seqused_k.dtype == torch.int32
    out = torch.empty_like(q)
    for row, pages in enumerate(page_table.long()):
        keys, values = (x[pages, :, 0].flatten(0, 1)[: int(seqused_k[row])] for x in (k, v))
        out[row, 0] = attend(q[row, 0], keys, values, softmax_scale)
    return out, None


def named(name: str) -> Any:
    """What stands in for `MODULE:NAME` of a library."""
    return STAND_INS[name.partition(":")[2].partition(".")[0]]


STAND_INS: dict[str, Any] = {
    "topk_sparse_attention": topk_sparse_attention,
    "FSA_topk_sparse_attention": topk_sparse_attention,
    "selection_attention_wrapper": selection_attention_wrapper,
    "BatchDecodeWithPagedKVCacheWrapper": PagedDecode,
    "BlockSparseAttentionWrapper": BlockSparse,
    "flash_attn_varlen_func": flash_attn_varlen_func,
}
