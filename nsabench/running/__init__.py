"""Measuring a plan: the policy, the log, the supervisor, its workers, and the timer."""
