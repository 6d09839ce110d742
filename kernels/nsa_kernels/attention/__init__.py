"""The whole of NSA: a decode step, a layer with its cache, and the paper's formulas."""
