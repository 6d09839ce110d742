"""Pinned images, one for each combo of torch, Triton and CUDA."""
