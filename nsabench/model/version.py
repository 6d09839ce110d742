"""The version of nsabench: of the code, of a plan, and of what a run was made with."""

__version__ = "0.2.0"
