"""Device code of the whole attention."""
