"""Replace functions of public libraries by plain PyTorch, with the arguments that a library
documents.

If an adapter gives a wrong argument, its output is wrong or an assertion fails.
"""

import itertools
from types import SimpleNamespace

import torch
from nsa_kernels.band.naive import naive_compressed, naive_sliding_window
from nsa_kernels.scoring.naive import naive_block_scores, naive_select_blocks
from nsa_kernels.selection.blocks.naive import naive_blocks


def attend(q, k, v, scale):
    """Return attention of the rows q [G,D] to k [n,D], v [n,Dv]."""
    return (q @ k.T * scale).softmax(-1) @ v


def topk_sparse_attention(q, k, v, topk_idx, block_size, cu_seqlens, softmax_scale):
    """Attend as Flash-NSA does: it reads as many first slots of a row as hold blocks up to the
    query's own."""
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
    q_tensor,
    k_tensor,
    v_tensor,
    block_indices_tensor,
    block_counts_tensor,
    cum_seqlen_q_tensor,
    cum_seqlen_k_tensor,
    block_size,
    scale_softmax,
    max_s_q,
    max_s_k,
    is_causal,
):
    """Attend as cuDNN does: it reads the first `block_counts` slots of a row. All slots must hold
    blocks."""
    assert is_causal and block_indices_tensor.min() >= 0 and max_s_q == max_s_k
    slots = torch.arange(block_indices_tensor.shape[-1])
    chosen = block_indices_tensor.where(slots < block_counts_tensor.unsqueeze(-1), -1)
    by_head = chosen.transpose(0, 1).contiguous()
    tensors = (q_tensor, k_tensor, v_tensor, by_head, block_size, cum_seqlen_q_tensor)
    return {"o_tensor": topk_sparse_attention(*tensors, scale_softmax)}


def parallel_nsa(
    *,
    q,
    k,
    v,
    g_cmp,
    g_slc,
    g_swa,
    block_indices,
    block_counts,
    block_size,
    window_size,
    scale,
    cu_seqlens,
):
    """Attend as fla-core does: to given blocks or to blocks that it selects, and to a window."""
    assert (g_cmp is None) != (block_indices is None) and (g_swa is None) == (window_size == 0)
    assert cu_seqlens is None or cu_seqlens.dtype == torch.int64
    assert block_indices is None or block_indices.dtype == torch.int64
    out = q.new_zeros(*q.shape[:3], v.shape[3])
    bounds = [0, q.shape[1]] if cu_seqlens is None else cu_seqlens.tolist()
    for b, (first, end) in itertools.product(range(q.shape[0]), itertools.pairwise(bounds)):
        here = slice(b, b + 1), slice(first, end)
        x, keys, values = q[here], k[here], v[here]
        blocks = {"block": block_size, "stride": block_size, "sm_scale": scale}
        if g_cmp is not None:
            whole = (end - first) // block_size * block_size
            k_cmp, v_cmp = (
                y[:, :whole].unflatten(1, (-1, block_size)).mean(2) for y in (keys, values)
            )
            out[here] += naive_compressed(x, k_cmp, v_cmp, **blocks)[0] * g_cmp[here].unsqueeze(-1)
            scores = naive_block_scores(x, k_cmp, **blocks, block_size=block_size)
            slots = naive_select_blocks(scores, block_counts, block_size=block_size)
        else:
            slots = block_indices[here]
        gate = 1.0 if g_slc is None else g_slc[here].unsqueeze(-1)
        out[here] += naive_blocks(x, keys, values, slots, block_size, scale)[0] * gate
        if g_swa is not None:
            near = naive_sliding_window(x, keys, values, window=window_size)[0]
            out[here] += near * g_swa[here].unsqueeze(-1)
    return out


class PagedDecode:
    """Replaces `BatchDecodeWithPagedKVCacheWrapper` of FlashInfer, with the layout NHD."""

    def __init__(
        self,
        float_workspace_buffer,
        kv_layout="NHD",
        use_cuda_graph=False,
        use_tensor_cores=False,
        paged_kv_indptr_buffer=None,
        paged_kv_indices_buffer=None,
        paged_kv_last_page_len_buffer=None,
    ):
        assert kv_layout == "NHD"
        given = (paged_kv_indptr_buffer, paged_kv_indices_buffer, paged_kv_last_page_len_buffer)
        assert all((x is not None) == use_cuda_graph for x in given)
        self.buffers = given if use_cuda_graph else None

    def plan(
        self,
        indptr,
        indices,
        last_page_len,
        num_qo_heads,
        num_kv_heads,
        head_dim,
        page_size,
        q_data_type,
        sm_scale,
    ):
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

    def run(self, q, paged_kv_cache):
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

    def page(self, x, pages, last):
        """Return the keys or the values of a row. Nothing after the last token is read."""
        size, (page, token, _, _) = self.sizes.page, x.stride()
        held = [size] * (len(pages) - 1) + [last]
        flat = x.as_strided((x.untyped_storage().nbytes() // x.element_size(),), (1,), 0)
        places = [
            x.storage_offset() + p * page + torch.arange(n) * token
            for p, n in zip(pages, held, strict=True)
        ]
        return flat[torch.cat(places)[:, None] + torch.arange(x.shape[-1])]


def of_sequence(q, k, v, scale, causal=False, window=(None, None)):
    """Return attention of one sequence: q [n,HQ,D], k [m,H,D], v [m,H,D]. For `causal` and
    `window`, the last query has the position of the last key. A query without keys gives zeros."""
    n, m = len(q), len(k)
    group = q.shape[1] // k.shape[1]
    behind = (torch.arange(n).view(n, 1) + m - n) - torch.arange(m)
    seen = behind >= 0 if causal else torch.ones(n, m, dtype=torch.bool)
    if window[0] not in (None, -1):
        seen = seen & (behind <= window[0])
    logits = torch.einsum("nhd,mhd->hnm", q, k.repeat_interleave(group, 1)) * scale
    weights = logits.masked_fill(~seen, float("-inf")).softmax(-1).nan_to_num(0.0)
    return torch.einsum("hnm,mhd->nhd", weights, v.repeat_interleave(group, 1))


def flash_attn_func(q, k, v, *, softmax_scale, causal=False, window_size=(-1, -1), num_splits=1):
    """Attend as FlashAttention-2 and 4 do: q [B,n,HQ,D], k, v [B,m,H,D]."""
    rows = zip(q, k, v, strict=True)
    return torch.stack([of_sequence(*row, softmax_scale, causal, window_size) for row in rows])


def flash_attn_varlen_func(
    q,
    k,
    v,
    *,
    softmax_scale,
    cu_seqlens_q=None,
    cu_seqlens_k=None,
    max_seqlen_q=0,
    max_seqlen_k=0,
    causal=False,
    window_size=(-1, -1),
    seqused_k=None,
    page_table=None,
):
    """Attend over packed sequences, or over pages: q [n,1,G,D], k [pages,page,1,D]."""
    out = torch.empty_like(q)
    if page_table is not None and seqused_k is not None:
        assert page_table.dtype == seqused_k.dtype == torch.int32
        for row, pages in enumerate(page_table.long()):
            keys, values = (x[pages, :, 0].flatten(0, 1)[: int(seqused_k[row])] for x in (k, v))
            out[row, 0] = attend(q[row, 0], keys, values, softmax_scale)
        return out
    assert cu_seqlens_q is not None and cu_seqlens_k is not None
    assert cu_seqlens_q.dtype == cu_seqlens_k.dtype == torch.int32
    queries, keys = cu_seqlens_q.tolist(), cu_seqlens_k.tolist()
    assert max(b - a for a, b in itertools.pairwise(queries)) <= max_seqlen_q
    assert max(b - a for a, b in itertools.pairwise(keys)) <= max_seqlen_k
    for i in range(len(queries) - 1):
        some, of_keys = slice(*queries[i : i + 2]), slice(*keys[i : i + 2])
        given = (q[some], k[of_keys], v[of_keys], softmax_scale, causal, window_size)
        out[some] = of_sequence(*given)
    return out


def flash_attn_with_kvcache(q, k_cache, v_cache, *, softmax_scale, num_splits=0):
    """Attend as FlashAttention-2 does: q [B,n,HQ,D] to the whole cache [B,m,H,D]."""
    return flash_attn_func(q, k_cache, v_cache, softmax_scale=softmax_scale)


def named(name):
    """Return the replacement of `MODULE:NAME` of a library."""
    return STAND_INS[name.partition(":")[2].partition(".")[0]]


STAND_INS = {
    "parallel_nsa": parallel_nsa,
    "selection_attention_wrapper": selection_attention_wrapper,
    "BatchDecodeWithPagedKVCacheWrapper": PagedDecode,
    "flash_attn_func": flash_attn_func,
    "flash_attn_with_kvcache": flash_attn_with_kvcache,
    "flash_attn_varlen_func": flash_attn_varlen_func,
}
