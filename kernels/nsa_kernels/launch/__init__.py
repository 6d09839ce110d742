"""What every launch needs: one launcher, argument checks, device limits, tuned tiles, room for
shares.

A kernel takes its run-time arguments in one order, and a launch gives them in groups of it: the
pointers, the strides of the tensors behind them (``sizes.strides``), what else is a number. They go
by position, compile-time arguments and options by name:

    out = empty(q.shape, q.dtype, q.device)
    launch(kernel, grid, *(q, k, out), *strides(q, k), *(t, n, scale), BLOCK=64, num_warps=4)

``launcher.launch`` is how each kernel is launched, ``tape.empty`` how what it writes is allocated.
A function that does nothing else with tensors is decorated by ``replay.replayed``; it then takes
the host as long as its launches do, however long it checks and chooses.
"""
