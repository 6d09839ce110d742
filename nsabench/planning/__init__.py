"""From YAML to a plan: the matrices, and what of them is measured by whom."""
