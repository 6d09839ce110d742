"""Compiles every kernel for other architectures and under other Tritons, without a GPU.

The supervisor (run, compile_all, tritons, report) imports no torch. The worker (worker, pretend,
record, build) is a process that a compiler may end.
"""
