"""Adapters for other libraries. The kernels themselves import none of them."""
