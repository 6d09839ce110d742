"""The types that all packages share."""
