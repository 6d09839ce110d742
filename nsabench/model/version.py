"""The version of nsabench."""

__version__ = "0.2.0"
