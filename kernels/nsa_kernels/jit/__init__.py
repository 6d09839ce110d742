"""Device code that ops share, and what kernels need in each version of Triton."""
