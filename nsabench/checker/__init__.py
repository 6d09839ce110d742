"""The checker: a process that imports no implementation, and judges what they return."""
