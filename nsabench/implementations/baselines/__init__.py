"""The baselines that ship."""
