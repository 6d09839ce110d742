"""Measure a plan: the policy, the log, the supervisor and its workers."""
