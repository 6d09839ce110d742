"""The typed objects that everybody uses. They hold no logic."""
