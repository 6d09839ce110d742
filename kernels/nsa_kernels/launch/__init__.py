"""Shared by all launches: argument checks, device limits, tiles, merging, and repeated calls.

Arguments of a kernel come in one order: pointers, the strides of the tensors behind them
(``sizes.strides``), other numbers. These are positional; constants and options are keywords:

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    kernel[grid](q, k, out, *strides(q, k), *(t, n, scale), BLOCK=64, num_warps=4)

``replay.replayed`` decorates functions that only launch kernels.
"""
