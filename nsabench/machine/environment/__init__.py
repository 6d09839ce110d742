"""Describe this machine: hardware, driver, software."""
