"""Several spans a row, read in place: ``selection_ranges``, with a backward."""
