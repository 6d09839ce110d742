"""Describe the machine, find its problems, and restrict processes."""
