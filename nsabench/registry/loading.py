"""Import implementations, and refuse sources that have changed."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Mapping
from pathlib import Path

from nsabench import sources as _sources
from nsabench.errors import UsageError
from nsabench.model.source import Source
from nsabench.registry.declaration import Implementation, collected, collecting_from

USER_MODULE = "nsabench_user_kernels"

GIVE_A_FILE = "check the path; `nsabench init OP FILE.py` writes a first kernel."


def sources(kernels: Path | None = None, ops_file: Path | None = None) -> dict[str, str]:
    if kernels is not None:
        _sources.read(kernels, GIVE_A_FILE)
    return _sources.digests(kernels, ops_file)


def load(
    kernels: Path | None = None,
    expected: Mapping[str, str] | None = None,
    *,
    ops_file: Path | None = None,
) -> list[Implementation]:
    """Import all implementations. Add the controls, which wrap one baseline of each op.

    `expected` has the sha256 of each source to import; None imports all. Raises `UsageError` for a
    source that has changed or cannot be imported, or that declares something invalid.
    """
    # Imported late, so that `from nsabench import implementation` loads no op.
    from nsabench import ops
    from nsabench.registry import validation

    content = b""
    if kernels is not None:
        content = _sources.read(kernels, GIVE_A_FILE if expected is None else _sources.PUT_BACK)
    if expected is not None:
        present = sources(kernels, ops_file)
        _sources.refuse_changed(present, expected, kernels, ops_file)
        if kernels is not None:
            _sources.digest_of(kernels, expected, content)  # these very bytes are executed
    if ops_file is not None:
        before = len(collected)
        digest = None if expected is None else _sources.digest_of(ops_file, expected)
        ops.load_file(ops_file, digest)
        if len(collected) > before:
            raise UsageError(
                f"{ops_file} registers implementations, but --ops files define ops",
                "move them to a file for --kernels.",
            )
    for origin, points in _sources.by_distribution(_sources.IMPLEMENTATIONS).items():
        if expected is None or origin in expected:
            for point in points:
                with collecting_from(Source(origin)):
                    _sources.imported(point.load, f"entry point {point.name!r} of {origin}")
    if kernels is not None:
        _load_file(kernels, content)
    implementations = [*collected, *validation.controls(collected)]
    validation.validate(implementations)
    return implementations


def _load_file(kernels: Path, content: bytes) -> None:
    source = Source.from_file(kernels, content)
    # Like a module, a file is executed only once.
    if any(item.source == source for item in collected):
        return
    with collecting_from(source):
        module = _sources.execute(kernels, content, _name_module(kernels.absolute()))
    sys.modules[USER_MODULE] = module
    if not any(item.source == source for item in collected):
        raise UsageError(
            f"{kernels} registers no implementation",
            'decorate a function with @nsabench.implementation(op=..., name="mine").',
        )


def _name_module(kernels: Path) -> str:
    """Make the folder and package of a file importable, and return the name of its module."""
    # The folder is appended, so that no file of the user hides an installed module.
    sys.path.append(str(kernels.parent))
    names = [] if kernels.stem == "__init__" else [kernels.stem]
    outermost = kernels
    while (outermost.parent / "__init__.py").is_file():
        outermost = outermost.parent
        names.insert(0, outermost.name)
    if outermost is kernels:
        return USER_MODULE
    sys.path.append(str(outermost.parent))
    found = importlib.util.find_spec(names[0])
    ours = found is not None and str(outermost) in (found.submodule_search_locations or ())
    return ".".join(names) if ours else USER_MODULE
