"""Write a static site of archived runs: decisions, leaderboards and the page of every run."""

from nsabench.output.site.build import INDEX, write

__all__ = ["INDEX", "write"]
