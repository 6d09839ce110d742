"""The controls: implementations that are wrong or dishonest on purpose.

Each is a mistake or a trick that has been seen to pass a benchmark, wrapped around PyTorch's own
attention, and each says which check is meant to catch it. A control declines, with `Unsupported`,
the cases on which it would be right: what it does not decline, it must be caught on.
"""
