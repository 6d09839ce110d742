"""Implementations that are wrong or dishonest on purpose, a file a check that they test.

Each is a mistake or a trick that has passed a benchmark before. It is wrapped around PyTorch's own
attention, and names the check that must catch it in every case. A control declines, with
`Unsupported`, the cases on which it would be right.
"""
