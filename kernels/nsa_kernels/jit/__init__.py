"""Device code that families share, and all code that depends on the version of Triton."""
