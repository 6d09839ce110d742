"""Import all shipped implementations: the modules whose names do not begin with `_`."""

import importlib
import pkgutil

for _module in pkgutil.walk_packages(__path__, f"{__name__}."):
    if not _module.name.rpartition(".")[2].startswith("_"):
        importlib.import_module(_module.name)
