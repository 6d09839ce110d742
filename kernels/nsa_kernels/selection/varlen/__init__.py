"""One span a row, packed, of any lengths: ``selection_varlen``."""
