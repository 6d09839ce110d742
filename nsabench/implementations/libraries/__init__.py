"""Adapters of public libraries, one in each module. The first call imports the library."""
