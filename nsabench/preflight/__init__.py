"""Compile every kernel for other architectures and Tritons, without a GPU, in workers."""
