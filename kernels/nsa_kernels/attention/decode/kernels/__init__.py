"""Device code of a decode step."""
