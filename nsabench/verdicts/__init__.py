"""Decide what measurements mean: verdicts, thresholds, break-even lengths, audits."""
