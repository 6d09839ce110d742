"""Measure the shards of a plan on many devices and hosts, and merge them."""
