"""Public libraries, a module a library, each imported by its first call. One that is not installed,
or whose functions are not as they were, is `unsupported`."""
