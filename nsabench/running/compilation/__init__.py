"""Kernels compiled ahead, by several processes at once, before anything is timed.

A compiler keeps one core busy, and a pass that meets each kernel when it times it waits for one
compiler after the other. Here every implementation that compiles is called on each of its cases
first. What that leaves in the caches of compilers is what the workers of every pass begin with;
nothing else of it counts: what fails here fails again where it is measured, and is recorded there.
"""

from nsabench.running.compilation.ahead import Ahead

__all__ = ["Ahead"]
