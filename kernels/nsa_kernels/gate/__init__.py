"""``selection_attention``: the kernel or packed SDPA, by a policy, and a report of which."""
