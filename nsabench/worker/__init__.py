"""Run a worker: import implementations, which are foreign code, and measure them."""
