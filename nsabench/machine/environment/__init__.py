"""Describes this machine: hardware, driver, software."""
