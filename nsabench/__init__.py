"""nsabench: is a custom GPU kernel right, is it faster, and from which length on?

What a kernel author needs is `implementation` (to register a function), `Unsupported` (to say that
a case is out of its reach) and, for kernels that are not Triton's, `KernelVariant` (to have them
compiled ahead). Everything else is reached through the command line.
"""

from nsabench.model.version import __version__
from nsabench.registry import KernelVariant, Unsupported, implementation

__all__ = ["KernelVariant", "Unsupported", "__version__", "implementation"]
