"""The selection branch: attention over the keys that a query has chosen, in four layouts."""
