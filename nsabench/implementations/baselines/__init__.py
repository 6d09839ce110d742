"""The shipped baselines."""
