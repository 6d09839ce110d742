"""What every launch needs: argument checks, device limits, tuned tiles, room for shares.

A kernel takes its run-time arguments in one order, and a launch gives them in groups of it: the
pointers, the strides of the tensors behind them (``sizes.strides``), what else is a number. They go
by position: by name each of them would cost 0.15 us a launch (Triton copies keywords three times),
which for the 25 to 35 of them is 6 us of 15. Compile-time arguments and options go by name.
"""
