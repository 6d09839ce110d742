"""The baselines and controls that ship. Adding a module to this folder adds its implementations."""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    importlib.import_module(_module.name)
