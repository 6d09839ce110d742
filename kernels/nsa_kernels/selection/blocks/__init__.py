"""Chosen blocks of keys for every query of a sequence: ``block_selection_attention``."""
