"""Attention under a band: the sliding window and the compressed keys."""
