"""What launches share: argument checks, device limits, tiles, merging, and replays of calls.

Most kernels take their arguments in one order: pointers, the strides of their tensors
(``sizes.strides``), other numbers. These are positional. Constants and options are keywords:

    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    kernel[grid](q, k, out, *strides(q, k), *(t, n, scale), BLOCK=64, num_warps=4)

``replay.replayed`` decorates functions that only launch kernels, to make later calls cheaper.
"""
