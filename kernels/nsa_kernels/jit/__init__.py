"""Device code that ops share, and all code that depends on the version of Triton."""
