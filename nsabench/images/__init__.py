"""Pinned images: one a combo of torch, Triton and CUDA. Made from a checkout, run by a daemon."""
