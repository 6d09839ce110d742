"""Public libraries that implementations call: what they are, whether they are here, and in which
version. Nothing of theirs is in this repository, and knowing them imports none of them.
"""

from nsabench.packages.catalogue import CATALOGUE, find
from nsabench.packages.package import Package
from nsabench.packages.repository import Repository

__all__ = ["CATALOGUE", "Package", "Repository", "find"]
