"""Compile every kernel for other architectures and Tritons, without a GPU.

Only the worker process (worker, pretend, record, build) imports torch, since a compiler may end it.
"""
