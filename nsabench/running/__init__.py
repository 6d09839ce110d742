"""Measure a plan: decide what is next, run workers, and log what they answer."""
