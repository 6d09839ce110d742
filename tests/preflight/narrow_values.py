"""Windows over keys and narrower values that no asynchronous copy can read.

A tile is as wide as the values. The library launches wider tiles.
"""

from unittest import mock

import nsa_kernels
from nsa_kernels.band import config, forward

from nsabench import implementation


def odd(x, columns):
    """Return a tensor like `x` with `columns` columns, at odd addresses."""
    room = x.new_empty((*x.shape[:-1], columns + 1))
    return room[..., 1:]


@implementation(op="sliding_window", name="as_wide_as_values", devices=("cuda",))
def as_wide_as_values(q, k, v, cu_seqlens=None, *, window, sm_scale, max_seqlen):
    with (
        mock.patch.object(forward, "value_columns", lambda d, dv, size: dv),
        mock.patch.object(config, "value_columns", lambda d, dv, size: dv),
    ):
        keys, values = odd(k, k.shape[3]), odd(v, v.shape[3] // 4)
        return nsa_kernels.sliding_window(q, keys, values, window=window, sm_scale=sm_scale)[0]
