"""Runs a plan in worker processes. Imports no torch and no foreign code."""
