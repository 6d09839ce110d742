"""Public libraries, a module a library. Each is imported in the first call of what uses it: one
that is not installed, or whose functions are not as they were, is `unsupported` and nothing else.
"""
