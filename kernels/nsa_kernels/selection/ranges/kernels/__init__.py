"""Device code of ``selection_ranges``."""
