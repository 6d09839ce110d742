"""Public libraries that implementations call. Reading this catalogue imports none of them."""

from nsabench.packages.catalogue import CATALOGUE, Package, find
from nsabench.packages.repository import Repository

__all__ = ["CATALOGUE", "Package", "Repository", "find"]
