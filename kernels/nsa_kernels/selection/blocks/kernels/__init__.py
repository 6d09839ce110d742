"""Device code of ``block_selection_attention``."""
