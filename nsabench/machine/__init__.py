"""Describes the machine, finds its problems, and restricts processes."""
