"""Worker processes, from the side of the supervisor. It imports no torch and no foreign code."""
