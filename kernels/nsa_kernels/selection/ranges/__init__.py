"""``selection_ranges``: several spans of keys per row, read in place, with a backward."""
