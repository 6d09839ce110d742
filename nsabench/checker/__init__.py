"""The checker: a process that judges the results of implementations, and imports none."""
