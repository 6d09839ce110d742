"""Device code of NSA attention."""
