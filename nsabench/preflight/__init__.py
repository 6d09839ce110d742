"""Compile kernels for other architectures and versions of Triton, without a GPU, in workers."""
