"""Device code of attention under a band."""
