"""What people read: the terminal, the report, comparisons, explanations."""
