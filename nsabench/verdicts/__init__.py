"""What measurements mean: checks, verdicts, diagnoses, thresholds, audits."""
