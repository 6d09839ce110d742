"""nsabench decides whether a custom GPU kernel is right, faster, and from which length.

Register a function with `implementation`. Raise `Unsupported` for a case that it cannot do. Yield a
`KernelVariant` for each kernel that is to be compiled ahead and is not Triton's.
"""

from nsabench.model.version import __version__
from nsabench.registry import KernelVariant, Unsupported, implementation

__all__ = ["KernelVariant", "Unsupported", "__version__", "implementation"]
