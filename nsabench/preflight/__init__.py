"""Compile every kernel for other architectures and Tritons, without a GPU.

Only the worker process (worker, record, pretend) imports torch, since a compiler may end it.
"""
