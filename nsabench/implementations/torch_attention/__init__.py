"""The ways to attention that torch has, which the baselines share."""
