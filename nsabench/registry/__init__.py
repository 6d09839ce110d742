"""How implementations reach the bench: `@implementation`, entry points, and a user's file.

Only worker processes call `load`: the files it imports are foreign code.
"""

from nsabench.registry.declaration import (
    Honest,
    Implementation,
    KernelVariant,
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
    "Unsupported",
    "control",
    "distributions",
    "implementation",
    "load",
    "sources",
]
