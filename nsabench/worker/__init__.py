"""The worker process: the only place that imports implementations, which are foreign code."""
