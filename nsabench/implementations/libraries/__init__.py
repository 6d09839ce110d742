"""Adapters of public libraries, one a module; each library is imported by the first call."""
