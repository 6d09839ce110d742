"""A static site of many runs: what was decided where, leaderboards, every run's page."""

from nsabench.output.site.build import INDEX, write

__all__ = ["INDEX", "write"]
