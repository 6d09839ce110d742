"""Shards on many devices and hosts, and one run out of them."""
