"""Importing what is installed and what the user names, and refusing what is not as it should be."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from nsabench import sources as _sources
from nsabench.errors import UsageError
from nsabench.model.source import Source
from nsabench.registry.declaration import Implementation, collected, collecting_from

USER_MODULE = "nsabench_user_kernels"

GIVE_A_FILE = "give --kernels a file."


def sources(kernels: Path | None = None, ops_file: Path | None = None) -> dict[str, str]:
    """Return where implementations and ops come from, and the sha256 of their files."""
    if kernels is not None:
        _sources.read(kernels, GIVE_A_FILE)
    return _sources.digests(kernels, ops_file)


def load(
    kernels: Path | None = None,
    expected: Mapping[str, str] | None = None,
    *,
    ops_file: Path | None = None,
) -> list[Implementation]:
    """Import all implementations, installed and of the user's file, and return them.

    With them come the controls of each op, wrapped around its first baseline.
    expected: the sources to import, each with the sha256 it must have; None: all, as they are.
    ops_file: the user's op, which is imported before them.
    Raises `UsageError` if a source is not as expected or cannot be imported, and as `validate`.
    """
    # Here and not above: `from nsabench import implementation` needs no op yet.
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
                f"{ops_file} registers implementations, and it is for an op",
                "put them into a file of their own, for --kernels.",
            )
    for origin, points in _sources.by_distribution(_sources.IMPLEMENTATIONS).items():
        if expected is None or origin in expected:
            for point in points:
                with collecting_from(Source(origin)):
                    _sources.imported(point.load, f"entry point {point.name!r} of {origin}")
    if kernels is not None:
        _load_file(kernels, content)
    found = [*collected, *validation.controls(collected)]
    validation.validate(found)
    return found


def _load_file(kernels: Path, content: bytes) -> None:
    source = Source.of_file(kernels, content)
    # Like a module, a file is executed once a process.
    if any(item.source == source for item in collected):
        return
    with collecting_from(source):
        _sources.execute(kernels, content, USER_MODULE)
    if not any(item.source == source for item in collected):
        raise UsageError(
            f"{kernels} registers no implementation",
            'decorate a function with @nsabench.implementation(op=..., name="mine").',
        )
