"""Kernels of the library on rows at odd addresses, which no asynchronous copy can read.

Values are narrower than keys.
"""

from unittest import mock

import nsa_kernels
from nsa_kernels.selection.blocks import api

from nsabench import implementation


def odd(x, columns):
    """Return the first columns of a tensor, one element further in memory."""
    room = x.new_empty((*x.shape[:-1], columns + 1))
    room[..., 1:] = x[..., :columns]
    return room[..., 1:]


def moved(q, k, v, narrower):
    return odd(q, q.shape[3]), odd(k, k.shape[3]), odd(v, v.shape[3] // narrower)


def widened(out, like):
    """Repeat the columns of an output, so that it is as wide as `like`."""
    return out.repeat(1, 1, 1, like.shape[3] // out.shape[3])


def window(narrower):
    def call(q, k, v, cu_seqlens=None, *, window, sm_scale, max_seqlen):
        out, _ = nsa_kernels.sliding_window(
            *moved(q, k, v, narrower), window=window, sm_scale=sm_scale
        )
        return widened(out, v)

    return call


def blocks(narrower):
    def call(q, k, v, block_indices, cu_seqlens=None, *, sm_scale, block_size):
        with mock.patch.object(api, "query_major_wins", lambda shape: False):
            out = nsa_kernels.block_selection_attention(
                *moved(q, k, v, narrower), block_indices, block_size=block_size, sm_scale=sm_scale
            )
        return widened(out, v)

    return call


for narrower in (2, 4):
    for op, of in (("sliding_window", window), ("selection_blocks", blocks)):
        implementation(op=op, name=f"{of.__name__}_{narrower}", devices=("cuda",))(of(narrower))
