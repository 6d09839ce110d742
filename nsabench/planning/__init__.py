"""Turn YAML matrices into a plan."""
