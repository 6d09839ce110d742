"""nsabench: is a custom GPU kernel right, is it faster, and from which length on?

What a kernel author needs is `implementation` (to register a function) and `Unsupported` (to say
that a case is out of its reach). Everything else is reached through the command line.
"""

from nsabench.registry import Unsupported, implementation

__version__ = "0.1.0"
__all__ = ["Unsupported", "__version__", "implementation"]
