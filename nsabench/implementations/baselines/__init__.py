"""The baselines that ship, a module an op."""
