"""``selection_varlen``: one span of keys per row, of any length, packed."""
