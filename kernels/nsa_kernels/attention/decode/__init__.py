"""Decode one token with a cache: each branch alone, or all in one chain of launches."""
