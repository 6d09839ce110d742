"""One token with a cache: the branches of a decode step, alone and as one chain of launches."""
