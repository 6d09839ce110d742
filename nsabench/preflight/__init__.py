"""Compiles every kernel for other architectures and under other Tritons, with no GPU.

The supervisor's half (run, tritons, report, table) imports no torch; the worker's half (worker,
pretend, record, build) runs in a process that a compiler may take down.
"""
