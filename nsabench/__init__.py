"""nsabench decides whether a custom GPU kernel is right, faster, and from which length.

Register a function with `implementation`. The function raises `Unsupported` for a case that it
cannot compute. For kernels that are not in Triton, `compile_ahead` returns `KernelVariant`s.
"""

from typing import TYPE_CHECKING, Any

from nsabench.model.version import __version__

if TYPE_CHECKING:
    from nsabench.registry import KernelVariant, Unsupported, implementation

__all__ = ["KernelVariant", "Unsupported", "__version__", "implementation"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from nsabench import registry  # at the top, this would slow down `nsabench --help`

    return getattr(registry, name)
