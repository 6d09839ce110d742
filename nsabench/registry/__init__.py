"""Collect implementations from decorators, entry points and the user's file.

Only worker processes call `load`, since it imports foreign code.
"""

from nsabench.registry.declaration import (
    Honest,
    Implementation,
    KernelVariant,
    Package,
    Unsupported,
    control,
    implementation,
)
from nsabench.registry.loading import USER_MODULE, load, sources
from nsabench.sources import versions as distributions

__all__ = [
    "USER_MODULE",
    "Honest",
    "Implementation",
    "KernelVariant",
    "Package",
    "Unsupported",
    "control",
    "distributions",
    "implementation",
    "load",
    "sources",
]
