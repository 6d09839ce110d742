"""Worker processes as the supervisor sees them. It imports no torch and no foreign code."""
