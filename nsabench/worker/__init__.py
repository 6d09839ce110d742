"""The worker process: the only place that imports torch and foreign code."""
