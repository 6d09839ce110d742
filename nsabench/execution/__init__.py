"""Measuring a plan: passes, the journal, the supervisor, its workers, and the timer."""
