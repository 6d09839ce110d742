"""Implementations that are wrong or dishonest on purpose, each wrapped around an honest baseline.

A control names the check that must catch it, and declines cases where its answer is right.
"""
