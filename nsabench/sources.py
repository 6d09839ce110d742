"""Find and hash foreign code: installed distributions with entry points, and the user's files.

A user's file is executed from the bytes that were hashed.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import TypeVar

from nsabench.errors import UsageError
from nsabench.model.source import Source

IMPLEMENTATIONS = "nsabench.implementations"  # this and the next are groups of entry points
OPS = "nsabench.ops"
PUT_BACK = "restore it where it was, or start a new run."

T = TypeVar("T")


def by_distribution(*groups: str) -> dict[str, list[EntryPoint]]:
    installed = entry_points()  # slow: it reads the metadata of every distribution
    by_name: dict[str, list[EntryPoint]] = defaultdict(list)
    for group in groups:
        for point in sorted(installed.select(group=group), key=lambda p: p.value):
            by_name[point.dist.name if point.dist else point.value].append(point)
    return by_name


def digests(*files: Path | None) -> dict[str, str]:
    """Return the sha256 of every source. Raises `UsageError` if two files are one `Source`."""
    sources = {
        origin: digest_packages({point.module.partition(".")[0] for point in points})
        for origin, points in by_distribution(IMPLEMENTATIONS, OPS).items()
    }
    for file in files:
        if file is not None:
            content = read(file)
            digest = sha256(content)
            source = Source.from_file(file, content)
            if sources.setdefault(source, digest) != digest:
                raise UsageError(f"two files are both {source}", "give one of them another name.")
    return sources


def versions() -> dict[str, str]:
    return {
        origin: points[0].dist.version if points[0].dist else ""
        for origin, points in by_distribution(IMPLEMENTATIONS, OPS).items()
    }


def refuse_changed(
    present: Mapping[str, str], expected: Mapping[str, str], *files: Path | None
) -> None:
    for source, digest in expected.items():
        if present.get(source) != digest:
            mine = (
                file
                for file in files
                if file is not None
                and Source(source).is_of(file)
                # If two files have the same name, one of them may be unchanged.
                and Source.from_file(file, read(file)) not in expected
            )
            raise changed(next(mine, source))


def changed(what: Path | str) -> UsageError:
    return UsageError(f"{what} is not what it was when the run began", PUT_BACK)


def digest_of(file: Path | None, sources: Mapping[str, str], content: bytes | None = None) -> str:
    """Return a user file's digest, or "". Raises `UsageError` if `sources` has another digest."""
    if file is None:
        return ""
    content = read(file, PUT_BACK) if content is None else content
    digest = sha256(content)
    if sources.get(Source.from_file(file, content)) != digest:
        raise changed(file)
    return digest


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read(path: Path, remedy: str = "check the path.") -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}", remedy) from None


def digest_packages(packages: set[str]) -> str:
    total = hashlib.sha256()
    for package in sorted(packages):
        for name, file in sorted(_list_files(package)):
            total.update(f"{package}/{name}\0".encode() + hashlib.sha256(read(file)).digest())
    return total.hexdigest()


def _list_files(package: str) -> Iterator[tuple[str, Path]]:
    spec = importlib.util.find_spec(package)
    if spec is None:
        return  # the import will raise the error
    if not spec.submodule_search_locations and spec.origin:
        yield package, Path(spec.origin)
    for root in spec.submodule_search_locations or ():
        for folder, folders, names in os.walk(root):
            folders[:] = [name for name in folders if name != "__pycache__"]
            within = folder[len(root) :].lstrip(os.sep)
            for name in names:
                file = os.path.join(folder, name)  # noqa: PTH118 - hundreds of files, in each worker
                if os.path.isfile(file):  # noqa: PTH113
                    yield os.path.join(within, name), Path(file)  # noqa: PTH118


class _HashedFile(MetaPathFinder, Loader):
    """Finds and executes one module, from the bytes that were hashed."""

    def __init__(self, name: str, path: Path, content: bytes) -> None:
        self._name, self._path, self._content = name, path, content

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname != self._name:
            return None
        spec = ModuleSpec(fullname, self)
        if self._path.name == "__init__.py":
            spec.submodule_search_locations = [str(self._path.parent)]
        return spec

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = str(self._path)
        exec(compile(self._content, str(self._path), "exec", dont_inherit=True), module.__dict__)


def execute(path: Path, content: bytes, name: str) -> ModuleType:
    """Import the content of a file as the module `name`. Its parent packages are imported first."""
    finder = _HashedFile(name, path, content)
    sys.modules.pop(name, None)
    sys.meta_path.insert(0, finder)
    try:
        return imported(lambda: importlib.import_module(name), str(path))
    finally:
        sys.meta_path.remove(finder)


FIX_THE_IMPORT = "fix the import, or run it with `python FILE.py` to see the whole traceback."


def imported(
    load: Callable[[], T],
    what: str,
    fails: str = "cannot be imported",
    remedy: str = FIX_THE_IMPORT,
) -> T:
    """Return the result of foreign code. If the code fails, raise `UsageError` with the line."""
    try:
        return load()
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        if isinstance(error, ModuleNotFoundError):
            remedy = "install that module, or put it beside the file."
        elif isinstance(error, ImportError) and "relative import" in str(error):
            remedy = (
                "give its folder an __init__.py and a name that no installed module has, or import "
                "files beside it by their names."
            )
        raise UsageError(
            f"{what} {fails}: {type(error).__name__}: {error}{_locate(error)}", remedy
        ) from error


def _locate(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        return ""
    frames = traceback.extract_tb(error.__traceback__)
    return f" (line {frames[-1].lineno} of {Path(frames[-1].filename).name})" if frames else ""
