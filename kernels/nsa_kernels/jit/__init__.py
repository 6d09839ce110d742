"""Device code that families share, and the one place that knows versions of Triton."""
