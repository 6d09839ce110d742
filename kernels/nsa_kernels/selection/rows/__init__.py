"""One span a row, all of one length: ``selection_rows``."""
