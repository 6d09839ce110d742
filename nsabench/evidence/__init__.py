"""Sign and verify runs, and keep them in an archive."""
