"""Measures matrices under several Tritons on this host, without containers."""
