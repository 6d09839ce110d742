"""The machine: what it is, whether it is fit, what it can do at most."""
